// Clock and temperature of this machine's processors, where the system reports them: what explains a rank that is slow.
#pragma once

#include <filesystem>
#include <optional>

namespace titan {

struct ProcessorState {
  std::optional<double> megahertz;  // the lowest of the cores that this process may use
  std::optional<double> celsius;    // the hottest sensor
};

/// From /sys/devices/system/cpu, else /proc/cpuinfo; and from /sys/class/thermal. Values that cannot be read are none.
ProcessorState processor_state(const std::filesystem::path& sys = "/sys", const std::filesystem::path& proc = "/proc");

}  // namespace titan
