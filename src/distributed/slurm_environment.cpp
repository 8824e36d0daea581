// Slurm's notations for hosts and tasks.
#include <charconv>

#include "environment_variables.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/distributed/launch_environment.h"

namespace titan {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string first_node(std::string_view node_list) {
  std::string name;
  size_t at = 0;
  while (at < node_list.size() && node_list[at] != ',') {
    if (node_list[at] != '[') {
      name += node_list[at++];
      continue;
    }
    const size_t close = node_list.find(']', at);
    const std::string_view ranges = node_list.substr(at + 1, close - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of("-,"));
    if (close == std::string_view::npos || first.empty()) {
      name.clear();
      break;
    }
    name += first;
    at = close + 1;
  }
  if (!name.empty()) return name;
  throw Error(ExitCode::launcher,
              fmt::format("SLURM_STEP_NODELIST = {} names no host; set MASTER_ADDR to the host of rank 0",
                          as_shown(node_list)));
}

std::optional<int64_t> tasks_of_node(std::string_view tasks_per_node, int64_t index) {
  for (const std::string& entry : split(tasks_per_node, ',')) {
    const size_t bracket = entry.find("(x");
    const std::optional<int64_t> tasks = whole_number(std::string_view(entry).substr(0, bracket));
    std::optional<int64_t> nodes = 1;
    if (bracket != std::string::npos) {
      if (!entry.ends_with(')')) return std::nullopt;
      nodes = whole_number(std::string_view(entry).substr(bracket + 2, entry.size() - bracket - 3));
    }
    if (!tasks || !nodes) return std::nullopt;
    if (index < *nodes) return tasks;
    index -= *nodes;
  }
  return std::nullopt;
}

}  // namespace titan
