// The owner of a weight. Operations hold a Parameter and read the current weight from it in forward and again in
// backward; the weight store decides where the weight is stored and for how long. A Parameter is never an autograd
// variable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/ops/float8.h"
#include "titan/plan/parameter_spec.h"
#include "titan/plan/tensor_layout.h"

namespace titan {

class Parameter {
 public:
  /// Unsharded, on one rank, until `place` is called.
  explicit Parameter(ParameterSpec spec);

  /// The layout over ranks and this rank's parts: `shard_box` (master, optimizer state, reduced gradient) and
  /// `unsharded_box`, which operations see between WAIT_UNSHARD and RESHARD. `owns_shard`: of the ranks with the same
  /// box, this one reports and saves it.
  void place(TensorLayout layout, Box shard_box, Box unsharded_box, bool owns_shard);

  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  const TensorLayout& layout() const { return layout_; }
  const Box& shard_box() const { return shard_box_; }
  const Box& unsharded_box() const { return unsharded_box_; }
  /// True on exactly one of the ranks that hold the same box.
  bool owns_shard() const { return owns_shard_; }
  bool trainable() const { return spec_.trainable; }
  /// No gradient of it is computed from now on, and the optimizer does not step it.
  void freeze() { spec_.trainable = false; }
  /// True if its products are computed in float8.
  bool in_float8() const { return in_float8_; }
  void set_in_float8(bool on) { in_float8_ = on; }

  // Operations use these, between WAIT_UNSHARD and RESHARD.

  /// The unsharded weight [extents of unsharded_box] in the compute dtype, or in float8 if it was all-gathered in that.
  /// Throws if the weight is not unsharded.
  const at::Tensor& weight() const;
  /// Storage of the unsharded gradient [extents of unsharded_box]: fp32, or bf16 if it is written once in a step. Its
  /// content is valid only if `gradient_written()`.
  at::Tensor& gradient();
  bool gradient_written() const { return gradient_written_; }
  /// Called after each write. A second one into a bf16 gradient is an internal error: its sum would be rounded twice.
  void mark_gradient_written();
  /// Stores `share` [extents of unsharded_box] as the gradient, rounded to its dtype, or adds it to what is written.
  void add_to_gradient(const at::Tensor& share);

  // The weight store, the optimizer and the checkpoint use these.

  /// This rank's shard [extents of shard_box] in training.dtype: the optimizer steps it, the checkpoint stores it.
  at::Tensor master;
  /// The shard [extents of shard_box] in the compute dtype, which is all-gathered; is the master if the dtypes agree.
  at::Tensor compute_copy;
  /// Set by a writer that updated the whole master together with `compute_copy`, so the copy is not stale. Read and
  /// reset by the weight store after weights change.
  bool compute_copy_written = false;
  /// Amax of `compute_copy`, an fp32 scalar [] where the shard is: a slot of the weight store. Undefined if the store
  /// does not want it.
  at::Tensor amax;
  /// Set by a writer that updated `amax` together with the whole of `compute_copy`, or left both as they were. Read and
  /// reset by the weight store after weights change.
  bool amax_written = false;
  /// Tensorwise scale of the whole weight, over all ranks, one number on the weight's device. Undefined without float8
  /// and for rowwise recipes, whose products compute their scales.
  Float8Scale float8_scale;
  /// The shard [extents of shard_box] in float8 if that is what is all-gathered; `compute_copy` is then the master.
  at::Tensor float8_copy;
  /// The shard [extents of shard_box] of the reduced gradient, in the dtype of the plan (WeightGroupPlan::gradient:
  /// fp32 or bf16); undefined until the step's last reduction.
  at::Tensor gradient_shard;

  void set_weight(at::Tensor unsharded) { weight_ = std::move(unsharded); }  // [extents of unsharded_box]
  void set_gradient(at::Tensor unsharded);                                   // [extents of unsharded_box], fp32 or bf16

 private:
  ParameterSpec spec_;
  TensorLayout layout_;
  Box shard_box_;
  Box unsharded_box_;
  bool owns_shard_ = true;
  bool in_float8_ = false;
  at::Tensor weight_;    // [extents of unsharded_box]
  at::Tensor gradient_;  // [extents of unsharded_box]
  bool gradient_written_ = false;
};

}  // namespace titan
