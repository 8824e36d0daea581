#include "titan/cli/commands.h"

#include <gtest/gtest.h>

#include <sstream>

#include "run.h"
#include "support/job.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

std::string schedule(const std::vector<std::string>& words) {
  std::ostringstream out;
  run_schedule_command(words, {}, out);
  return out.str();
}

const std::vector<std::string> kSmall{"--name", "zbvzerobubble", "--ranks", "4", "--microbatches", "8"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ScheduleCommand, WhatItWritesItReadsBackAndShowsTheSame) {
  const TestFolder folder;
  for (const std::vector<std::string>& form : {std::vector<std::string>{}, {"--lowered"}}) {
    const std::string file = folder / "a.csv";
    const std::string written = schedule(with(with(kSmall, {"--csv", file}), form));
    EXPECT_TRUE(holds(written, "wrote " + file));
    const std::string read = schedule({"--from", file});
    EXPECT_TRUE(holds(read, "4 ranks, 8 stages, 8 microbatches\n"));
    const size_t grid = written.find("\n\n");
    EXPECT_EQ(read.substr(read.find("\n\n")), written.substr(grid, written.find("wrote ") - grid));
  }
}

TEST(ScheduleCommand, IsFoundByTheProgramWithItsHelp) {
  EXPECT_EQ(run(with({"schedule"}, kSmall)).code, 0);
  const Outcome help = run({"schedule", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"--name", "--from", "--ranks", "--csv", "--lowered"}) EXPECT_TRUE(holds(help.output, word));
  EXPECT_TRUE(holds(run({"help"}).output, "schedule "));
}

}  // namespace
}  // namespace titan
