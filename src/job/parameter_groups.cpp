#include "titan/job/parameter_groups.h"

#include <map>
#include <optional>
#include <regex>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {

std::vector<ParameterGroup> assign_parameter_groups(const std::vector<std::string>& names,
                                                    const std::vector<ParamGroup>& patterns) {
  std::vector<ParameterGroup> groups(1);
  std::vector<std::string> problems;
  std::vector<std::optional<size_t>> owner(names.size());
  for (size_t p = 0; p < patterns.size(); ++p) {
    ParameterGroup group{patterns[p].match, patterns[p].lr_multiplier, patterns[p].weight_decay_multiplier, {}};
    // By the earlier pattern: a name that two patterns match is an error, and one line for each pair of patterns is
    // enough.
    std::map<size_t, std::vector<std::string>> shared;
    try {
      const std::regex pattern(patterns[p].match);
      for (size_t i = 0; i < names.size(); ++i) {
        if (!std::regex_search(names[i], pattern)) continue;
        if (owner[i]) {
          shared[*owner[i]].push_back(names[i]);
          continue;
        }
        owner[i] = p;
        group.members.push_back(i);
      }
      for (const auto& [earlier, doubly] : shared) {
        const std::string others = doubly.size() > 1 ? fmt::format(", as are {} others", doubly.size() - 1) : "";
        problems.push_back(fmt::format("{} is matched by both \"{}\" and \"{}\"{}; make one pattern narrower",
                                       doubly[0], patterns[earlier].match, patterns[p].match, others));
      }
      if (group.members.empty() && shared.empty()) {
        problems.push_back(fmt::format("the pattern \"{}\" matches no parameter; names look like {}", patterns[p].match,
                                       names.empty() ? "(none)" : names.front()));
      }
    } catch (const std::regex_error&) {
      problems.push_back(fmt::format("\"{}\" is not a regular expression", patterns[p].match));
    }
    groups.push_back(std::move(group));
  }
  if (!problems.empty()) {
    throw Error(ExitCode::bad_config, "optimizer.param_groups: " + join(problems, "; "));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!owner[i]) groups[0].members.push_back(i);
  }
  return groups;
}

}  // namespace titan
