// The fused kernels as operations see them: which they may use, on which device, and what is said, once, of a shape
// that none fits. An operation without them, or with a shape they do not support, takes ATen's operations, which are
// the reference. Made where a run begins (compile.enable); handed down in UnitContext.
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
  /// `table` is for tensors of `device`; `say` is told of each kind of fallback once.
  FusedKernels(const Kernels& table, at::DeviceType device, std::function<void(const std::string&)> say = {})
      : table_(&table), device_(device), say_(std::move(say)) {}

  const Kernels& table() const { return *table_; }
  /// Whether all that are defined are on the device, contiguous, in the first one's dtype, and that is fp32 or bf16;
  /// empty ones only where `may_be_empty`.
  bool fit(std::initializer_list<const at::Tensor*> tensors, bool may_be_empty = false) const;
  /// Says, the first time, that `what` takes ATen's operations; false, so that a condition may end with it.
  bool fall_back(const std::string& what) const;

 private:
  const Kernels* table_;
  at::DeviceType device_;
  std::function<void(const std::string&)> say_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> said_;
};

/// fp32 or bf16, as kernels name them.
KernelType kernel_type(const at::Tensor& tensor);
/// The stream that ATen's operations on this tensor would be enqueued to; null on the host.
CUstream_st* current_stream(const at::Tensor& tensor);

}  // namespace titan
