// Gradients of the outputs of several linear layers as columns of one matrix, so that one product computes the gradient
// of the input they share and one that of their adjacent weights. The operations that compute the gradients write into
// the columns directly where they can.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace titan {

/// One per forward call of layers with the same input: its state lives from the first gradient in backward to
/// `complete`.
class ColumnGradients {
 public:
  /// `widths`: output features of each layer.
  explicit ColumnGradients(std::vector<int64_t> widths) : widths_(std::move(widths)) {}

  /// Uninitialised memory for the gradient of output `index`, shaped like `like` [rows..., widths[index] in all]; its
  /// rows are Σ widths elements apart.
  at::Tensor columns(size_t index, const at::Tensor& like);
  /// Releases the matrix [rows, Σ widths] with all `gradients` [rows, width]; those that are elsewhere are copied to
  /// it.
  at::Tensor complete(const std::vector<at::Tensor>& gradients);

 private:
  std::vector<int64_t> widths_;
  at::Tensor matrix_;  // [rows, Σ widths]
};

/// The tensor's rows as a kernel addresses them: `stride` elements apart, each of `width` adjacent elements.
struct StridedRows {
  int64_t rows = 0, width = 0, stride = 0;
};
/// `tensor` [..., width over its last `dimensions`] as strided rows; none if its memory is not laid out like that.
std::optional<StridedRows> strided_rows(const at::Tensor& tensor, int64_t dimensions);

/// One matrix over `parts` [rows_i, columns] that follow each other in memory; undefined if they do not.
at::Tensor joined_rows(const std::vector<at::Tensor>& parts);

}  // namespace titan
