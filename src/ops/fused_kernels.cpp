#include "titan/ops/fused_kernels.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/gpu/cuda.h"
#include "titan/ops/column_gradients.h"

namespace titan {

bool FusedKernels::fit(std::initializer_list<const at::Tensor*> tensors, bool may_be_empty) const {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return !tensor->defined() ||
           (takes(*tensor, type) && tensor->is_contiguous() && (may_be_empty || tensor->numel() > 0));
  });
}

bool FusedKernels::rows_fit(std::initializer_list<const at::Tensor*> tensors, int64_t dimensions) const {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return !tensor->defined() || (takes(*tensor, type) && tensor->numel() > 0 && strided_rows(*tensor, dimensions));
  });
}

bool FusedKernels::takes(const at::Tensor& tensor, at::ScalarType type) const {
  return (type == at::kFloat || type == at::kBFloat16) && tensor.scalar_type() == type &&
         tensor.device().type() == device_;
}

bool FusedKernels::fall_back(const std::string& what) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (said_.insert(what).second && say_) say_("the fused kernels do not compute " + what + "; plain operations do");
  return false;
}

KernelType kernel_type(const at::Tensor& tensor) {
  TITAN_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16,
              c10::toString(tensor.scalar_type()));
  return tensor.scalar_type() == at::kFloat ? KernelType::fp32 : KernelType::bf16;
}

CUstream_st* current_stream(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda().current_stream(tensor.get_device()) : nullptr;
}

}  // namespace titan
