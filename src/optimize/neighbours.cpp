#include "titan/optimize/neighbours.h"

#include <algorithm>
#include <functional>

namespace titan {

bool adjacent(const at::Tensor& before, const at::Tensor& after) {
  return before.storage().is_alias_of(after.storage()) && before.is_contiguous() && after.is_contiguous() &&
         before.storage_offset() + before.numel() == after.storage_offset();
}

at::Tensor merged(const at::Tensor& first, int64_t numel) {
  return first.as_strided({numel}, {1}, first.storage_offset());
}

std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors) {
  std::erase_if(tensors, [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  std::sort(tensors.begin(), tensors.end(), [](const at::Tensor& a, const at::Tensor& b) {
    return std::less<>()(a.const_data_ptr(), b.const_data_ptr());
  });
  std::vector<at::Tensor> runs;
  for (const at::Tensor& tensor : tensors) {
    if (!runs.empty() && runs.back().scalar_type() == tensor.scalar_type() && adjacent(runs.back(), tensor)) {
      runs.back() = merged(runs.back(), runs.back().numel() + tensor.numel());
    } else {
      runs.push_back(tensor);
    }
  }
  return runs;
}

}  // namespace titan
