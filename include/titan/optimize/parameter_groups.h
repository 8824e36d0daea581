// Which parameters share a learning rate and a weight decay: `[[optimizer.param_groups]]` against the model's names.
// Names only, no tensors: the config check asks it about a model that was never built, the optimizer about the one that
// was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

struct ParameterGroup {
  std::string match;  // the pattern; empty: the parameters that no pattern names
  double lr_multiplier = 1.0;
  double weight_decay_multiplier = 1.0;
  std::vector<size_t> members;  // indices into the names given
};

/// Group 0 is the rest (possibly empty), then one per pattern. Throws Error(bad_config) listing every pattern that
/// matches nothing or is no regular expression, and every parameter that two patterns match.
std::vector<ParameterGroup> assign_parameter_groups(const std::vector<std::string>& names,
                                                    const std::vector<ParamGroup>& patterns);

}  // namespace titan
