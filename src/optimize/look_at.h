// One number of the device for the host. Private to optimize.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

/// Of a CPU a look into its memory, which is free and which debug.sync_check need not hear of; a GPU is waited for.
inline double look_at(const at::Tensor& scalar) {
  if (!scalar.is_cpu()) return scalar.item<double>();
  const bool wide = scalar.scalar_type() == at::kDouble;
  return wide ? *scalar.const_data_ptr<double>() : static_cast<double>(*scalar.const_data_ptr<float>());
}

}  // namespace titan
