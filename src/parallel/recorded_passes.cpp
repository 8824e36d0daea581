#include "titan/parallel/recorded_passes.h"

namespace titan {

void append_shape(std::vector<int64_t>& key, const at::Tensor& tensor) {
  key.push_back(tensor.defined() ? tensor.dim() : -1);
  if (!tensor.defined()) return;
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
}

std::vector<const void*> addresses_of(std::span<Parameter* const> parameters, bool with_gradients) {
  std::vector<const void*> result;
  for (Parameter* parameter : parameters) {
    result.push_back(parameter->weight().const_data_ptr());
    result.push_back(parameter->float8_scale.defined() ? parameter->float8_scale.value.const_data_ptr() : nullptr);
    if (!with_gradients || !parameter->trainable()) continue;
    result.push_back(parameter->gradient().const_data_ptr());
    result.push_back(parameter->gradient_written() ? parameter : nullptr);
  }
  return result;
}

}  // namespace titan
