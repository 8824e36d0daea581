// Which parameters share a learning rate and weight decay: matches `[[optimizer.param_groups]]` against parameter
// names. Needs no tensors, so both the config check and the optimizer use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

struct ParameterGroup {
  std::string match;  // the pattern; empty: the parameters that no pattern matches
  double lr_multiplier = 1.0;
  double weight_decay_multiplier = 1.0;
  std::vector<size_t> members;  // indices into the given names
};

/// Group 0 is the remainder (may be empty), then one group per pattern. Throws Error(bad_config) listing every pattern
/// that matches nothing or is not a regular expression, and every parameter that two patterns match.
std::vector<ParameterGroup> assign_parameter_groups(const std::vector<std::string>& names,
                                                    const std::vector<ParamGroup>& patterns);

}  // namespace titan
