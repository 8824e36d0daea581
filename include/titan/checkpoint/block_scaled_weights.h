// Weights that were quantised in blocks to 8-bit floating point, read as the numbers they stand for: what is beside
// them under `NAME_scale_inv` is the factor of every block. Knows nothing of models.
#pragma once

#include <map>
#include <string>

#include "titan/checkpoint/tensor_source.h"

namespace titan {

/// Rows and columns of a block; those at the edges of a tensor are smaller.
struct ScaleBlock {
  int64_t rows = 128;
  int64_t columns = 128;

  bool operator==(const ScaleBlock&) const = default;
};

/// Another source's tensors, which it refers to. Quantised ones, float8_e4m3fn [rows, columns], appear as float32 and
/// their factors [rows / block.rows, columns / block.columns], rounded up, do not appear; all others pass through.
class BlockScaledWeights : public TensorSource {
 public:
  /// Throws DamageError when a quantised tensor has no factors, or factors of another shape.
  BlockScaledWeights(TensorSource& stored, ScaleBlock block);

  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  /// Number · factor of its block, computed in float32. Takes three times the bytes of the box in float32 besides.
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return stored_.description(); }

 private:
  at::Tensor factors(const std::string& name, const Box& box);

  TensorSource& stored_;
  ScaleBlock block_;
  std::map<std::string, LogicalTensor> tensors_;
};

}  // namespace titan
