// The fused kernels available to operations; reports each unsupported shape once. Without them, or for unsupported
// shapes, operations use ATen, which is the reference. Created at start (compile.enable); passed in UnitContext.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string>

#include "titan/kernels/kernels.h"

namespace titan {

class FusedKernels {
 public:
  /// `table` serves tensors on `device`; `say` is called once per kind of fallback.
  FusedKernels(const Kernels& table, at::DeviceType device, std::function<void(const std::string&)> say = {})
      : table_(&table), device_(device), say_(std::move(say)) {}

  const Kernels& table() const { return *table_; }
  /// True if all defined `tensors` (any shapes) are on the device, contiguous, and share the first one's dtype, fp32 or
  /// bf16. Empty tensors fit only with `may_be_empty`.
  bool fit(std::initializer_list<const at::Tensor*> tensors, bool may_be_empty = false) const;
  /// The same where rows over the last `dimensions` need to be contiguous only in themselves (strided_rows).
  bool rows_fit(std::initializer_list<const at::Tensor*> tensors, int64_t dimensions) const;
  /// Reports once that `what` uses ATen. Returns false, so that it can end a condition.
  bool fall_back(const std::string& what) const;

 private:
  bool takes(const at::Tensor& tensor, at::ScalarType type) const;

  const Kernels* table_;
  at::DeviceType device_;
  std::function<void(const std::string&)> say_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> said_;
};

KernelType kernel_type(const at::Tensor& tensor);  // of any shape
/// The stream that ATen would use for this `tensor` (any shape); null on the host.
CUstream_st* current_stream(const at::Tensor& tensor);

}  // namespace titan
