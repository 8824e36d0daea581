#include "titan/optimize/parameter_groups.h"

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
    try {
      const std::regex pattern(patterns[p].match);
      for (size_t i = 0; i < names.size(); ++i) {
        if (!std::regex_search(names[i], pattern)) continue;
        if (owner[i]) {
          problems.push_back(fmt::format("{} is matched by both \"{}\" and \"{}\"; make one pattern narrower", names[i],
                                         patterns[*owner[i]].match, patterns[p].match));
          continue;
        }
        owner[i] = p;
        group.members.push_back(i);
      }
      if (group.members.empty()) {
        problems.push_back(fmt::format("the pattern \"{}\" matches no parameter; names look like {}", patterns[p].match,
                                       names.empty() ? "(none)" : names.front()));
      }
    } catch (const std::regex_error&) {
      problems.push_back(fmt::format("\"{}\" is not a regular expression", patterns[p].match));
    }
    groups.push_back(std::move(group));
  }
  if (!problems.empty()) {
    throw Error(ExitCode::bad_config, "optimizer.param_groups: " + join(problems, "\noptimizer.param_groups: "));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!owner[i]) groups[0].members.push_back(i);
  }
  return groups;
}

}  // namespace titan
