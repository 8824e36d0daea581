#include "titan/model/unit.h"

#include <ATen/ops/empty.h>

namespace titan {

WeightModule::WeightModule(Parameter& parameter) : torch::nn::Module("weight"), parameter_(parameter) {
  at::Tensor shape_only = at::empty(parameter.spec().shape, at::TensorOptions(at::kMeta));
  register_parameter("weight", shape_only, /*requires_grad=*/false);
}

void WeightModule::refresh() { parameters_["weight"] = parameter_.master; }

}  // namespace titan
