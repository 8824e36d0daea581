#include "titan/model/model.h"

#include "titan/base/error.h"

namespace titan {

Parameter& Model::parameter(std::string_view name) const {
  for (const auto& parameter : parameters_by_order_) {
    if (parameter->name() == name) return *parameter;
  }
  throw InvariantError(fmt::format("internal error: the model has no parameter {}", name));
}

Parameter& Model::add_parameter(const ParameterSpec& spec) {
  parameters_by_order_.push_back(std::make_unique<Parameter>(spec));
  return *parameters_by_order_.back();
}

}  // namespace titan
