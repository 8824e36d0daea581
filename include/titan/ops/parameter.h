// The one owner of a weight. Operations hold a Parameter and ask it for the current weight, in forward and again in
// backward; the weight store decides where that weight lives, and for how long. It is never an autograd variable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/distributed/tensor_layout.h"
#include "titan/ops/float8.h"

namespace titan {

/// How a parameter's values begin; a pure function of (seed, name, global index) whatever the layout.
struct Initialiser {
  enum class Kind { normal, truncated_normal, ones };
  Kind kind = Kind::ones;
  double standard_deviation = 1.0;
  double lower = -2.0;  // truncated_normal: absolute bounds
  double upper = 2.0;
};

struct ParameterSpec {
  std::string name;  // torchtitan's fully qualified name
  std::vector<int64_t> shape;
  Initialiser initialiser;
  bool trainable = true;
  /// The dimension that ranks sharing every matrix cut; none: each of them holds a copy.
  std::optional<int64_t> tensor_parallel_dimension = std::nullopt;

  int64_t numel() const;
};

class Parameter {
 public:
  /// Whole and alone until `place` says otherwise.
  explicit Parameter(ParameterSpec spec);

  /// How it lies over the ranks, and which parts are this rank's: the box it owns (master, optimizer state, reduced
  /// gradient) and the box that operations see between WAIT_UNSHARD and RESHARD.
  /// `owns_shard`: of the ranks with the same box, this one reports and saves it.
  void place(TensorLayout layout, Box shard_box, Box unsharded_box, bool owns_shard);

  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  const TensorLayout& layout() const { return layout_; }
  const Box& shard_box() const { return shard_box_; }
  const Box& unsharded_box() const { return unsharded_box_; }
  /// Of the ranks that hold the same box exactly one does.
  bool owns_shard() const { return owns_shard_; }
  bool trainable() const { return spec_.trainable; }
  /// Products with it are made in float8.
  bool in_float8() const { return in_float8_; }
  void set_in_float8(bool on) { in_float8_ = on; }

  // What operations use, between WAIT_UNSHARD and RESHARD of a program.

  /// The unsharded weight (the part in `unsharded_box`) in the compute dtype, or in float8 where it travelled so. Fails
  /// when it is not unsharded.
  const at::Tensor& weight() const;
  /// This weight and those that follow it in storage as one matrix of `rows` rows: a fused product's operand.
  at::Tensor weight_rows(int64_t rows) const { return rows_from(weight(), rows); }
  /// The unsharded gradient's storage. Its content counts only once `gradient_written()`.
  at::Tensor& gradient();
  at::Tensor gradient_rows(int64_t rows) { return rows_from(gradient(), rows); }
  bool gradient_written() const { return gradient_written_; }
  void mark_gradient_written() { gradient_written_ = true; }

  // What the owner side sets and reads.

  /// This rank's shard in training.dtype: what the optimizer steps and the checkpoint stores.
  at::Tensor master;
  /// This rank's shard in the dtype that travels and multiplies; the master itself when the dtypes agree.
  at::Tensor send;
  /// Whoever wrote the whole master wrote `send` with it, so that it is no stale copy. Read and reset by the
  /// weight store when weights have changed.
  bool send_written = false;
  /// Of the weight as a whole, one number where the weight is; undefined where nobody keeps it.
  Float8Scale float8_scale;
  /// This rank's shard in float8 where that is what travels; then `send` is the master.
  at::Tensor float8_send;
  /// This rank's shard of the reduced gradient, fp32; undefined until the last reduction of a step.
  at::Tensor gradient_shard;

  void set_weight(at::Tensor unsharded) { weight_ = std::move(unsharded); }
  void set_gradient(at::Tensor unsharded);

 private:
  static at::Tensor rows_from(const at::Tensor& tensor, int64_t rows);

  ParameterSpec spec_;
  TensorLayout layout_;
  Box shard_box_;
  Box unsharded_box_;
  bool owns_shard_ = true;
  bool in_float8_ = false;
  at::Tensor weight_;
  at::Tensor gradient_;
  bool gradient_written_ = false;
};

}  // namespace titan
