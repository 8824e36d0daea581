// The numbers of a tensor that is known to hold those of one type.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

template <class T>
const T* values(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* results(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace titan
