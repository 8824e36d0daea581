// The optimizer's section of the default config, for tests that change one option of it.
#pragma once

#include "titan/config/schema.h"

namespace titan {

inline OptimizerSection optimizer_options(OptimizerImplementation implementation = OptimizerImplementation::fused) {
  OptimizerSection options = default_config().optimizer;
  options.implementation = implementation;
  return options;
}

inline OptimizerSection with_states(ElementType dtype) {
  OptimizerSection options = optimizer_options();
  options.state_dtype = dtype;
  return options;
}

inline OptimizerSection with_weight_decay(double weight_decay) {
  OptimizerSection options = optimizer_options();
  options.weight_decay = weight_decay;
  return options;
}

}  // namespace titan
