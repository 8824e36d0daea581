#include "titan/ops/column_gradients.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {

at::Tensor ColumnGradients::columns(size_t index, const at::Tensor& like) {
  TITAN_CHECK(index < widths_.size() && like.defined() && like.numel() % widths_[index] == 0, index, widths_.size(),
              summary_of(like));
  const int64_t all = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  const int64_t first = std::accumulate(widths_.begin(), widths_.begin() + static_cast<int64_t>(index), int64_t{0});
  const int64_t rows = like.numel() / widths_[index];
  if (!matrix_.defined()) matrix_ = at::empty({rows, all}, like.options());
  TITAN_CHECK(matrix_.size(0) == rows && same_kind(matrix_, like), summary_of(matrix_), summary_of(like), rows);
  return matrix_.narrow(1, first, widths_[index]).view(like.sizes());
}

at::Tensor ColumnGradients::complete(const std::vector<at::Tensor>& gradients) {
  TITAN_CHECK(gradients.size() == widths_.size(), gradients.size(), widths_.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor place = columns(i, gradients[i]);
    if (place.const_data_ptr() != gradients[i].const_data_ptr()) place.copy_(gradients[i]);
  }
  return std::exchange(matrix_, {});
}

std::optional<StridedRows> strided_rows(const at::Tensor& tensor, int64_t dimensions) {
  const int64_t outer = tensor.dim() - dimensions;
  StridedRows found{1, 1, 0};
  for (int64_t d = tensor.dim() - 1; d >= outer; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != found.width) return std::nullopt;
    found.width *= tensor.size(d);
  }
  found.stride = found.width;  // a single row has no stride of its own
  for (int64_t d = outer - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (found.rows == 1) found.stride = tensor.stride(d);
    if (tensor.stride(d) != found.stride * found.rows) return std::nullopt;
    found.rows *= tensor.size(d);
  }
  return found;
}

at::Tensor joined_rows(const std::vector<at::Tensor>& parts) {
  TITAN_CHECK(!parts.empty() && parts[0].defined() && parts[0].dim() == 2, parts.size(),
              parts.empty() ? std::string() : summary_of(parts[0]));
  const at::Tensor& first = parts[0];
  int64_t rows = 0;
  for (const at::Tensor& part : parts) {
    const bool follows = part.dim() == 2 && part.is_contiguous() && part.size(1) == first.size(1) &&
                         part.scalar_type() == first.scalar_type() && part.is_alias_of(first) &&
                         part.storage_offset() == first.storage_offset() + rows * first.size(1);
    if (!follows) return {};
    rows += part.size(0);
  }
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1}, first.storage_offset());
}

}  // namespace titan
