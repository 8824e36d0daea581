#include <gtest/gtest.h>

#include "support/files.h"
#include "titan/base/process.h"

namespace titan {
namespace {

TEST(ProcessorState, ClockAndTemperatureComeFromSys) {
  const test::TemporaryFolder folder;
  double clock = 3000;
  for (const int core : allowed_cores()) {
    folder.write("devices/system/cpu/cpu" + std::to_string(core) + "/cpufreq/scaling_cur_freq",
                 std::to_string(static_cast<int64_t>(clock * 1000)));
    clock += 100;
  }
  folder.write("class/thermal/thermal_zone0/temp", "41000\n");
  folder.write("class/thermal/thermal_zone1/temp", "87500\n");
  const ProcessorState state = processor_state(folder.string(), folder / "none");
  EXPECT_EQ(state.megahertz, 3000) << "the slowest core";
  EXPECT_EQ(state.celsius, 87.5) << "the hottest sensor";
}

TEST(ProcessorState, TheClockMayComeFromProc) {
  const test::TemporaryFolder folder;
  folder.write("cpuinfo", "processor : 0\ncpu MHz\t\t: 2450.5\n\nprocessor : 1\ncpu MHz\t\t: 1200.25\n");
  const ProcessorState state = processor_state(folder / "none", folder.string());
  EXPECT_EQ(state.megahertz, 1200.25);
  EXPECT_FALSE(state.celsius.has_value());
}

TEST(ProcessorState, WhatCannotBeReadIsMissing) {
  const test::TemporaryFolder folder;
  folder.write("cpuinfo", "cpu MHz : unknown\n");
  folder.write("class/thermal/thermal_zone0/temp", "hot\n");
  const ProcessorState state = processor_state(folder.string(), folder.string());
  EXPECT_FALSE(state.megahertz.has_value());
  EXPECT_FALSE(state.celsius.has_value());
}

}  // namespace
}  // namespace titan
