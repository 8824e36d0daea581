#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "titan/base/process.h"

namespace titan {
namespace {

std::optional<double> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  double value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

std::optional<double> clock_in_cpuinfo(const std::filesystem::path& file) {
  std::optional<double> lowest;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with("cpu MHz") || colon == line.npos) continue;
    const double value = std::strtod(line.c_str() + colon + 1, nullptr);
    if (value > 0) lowest = std::min(lowest.value_or(value), value);
  }
  return lowest;
}

}  // namespace

ProcessorState processor_state(const std::filesystem::path& sys, const std::filesystem::path& proc) {
  ProcessorState state;
  for (const int core : allowed_cores()) {
    const std::optional<double> kilohertz =
        number_in(sys / fmt::format("devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
    if (kilohertz) state.megahertz = std::min(state.megahertz.value_or(*kilohertz / 1e3), *kilohertz / 1e3);
  }
  if (!state.megahertz) state.megahertz = clock_in_cpuinfo(proc / "cpuinfo");
  std::error_code error;
  for (const auto& zone : std::filesystem::directory_iterator(sys / "class/thermal", error)) {
    const std::optional<double> millidegrees = number_in(zone.path() / "temp");
    if (millidegrees) state.celsius = std::max(state.celsius.value_or(*millidegrees / 1e3), *millidegrees / 1e3);
  }
  return state;
}

}  // namespace titan
