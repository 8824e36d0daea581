// Residency: where the weights of one weight group live. Each call is one instruction of a program (program.h), which
// says when; sharded, offloaded and quantised weights are other implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/ops/float8.h"
#include "titan/ops/parameter.h"
#include "titan/parallel/plan.h"

namespace titan {

class Residency {
 public:
  virtual ~Residency() = default;

  /// REFRESH: makes the compute copies of this rank's shard, and scales that travel with them, unless their writer has
  /// (Parameter::send_written).
  virtual void refresh() = 0;
  /// UNSHARD: begins to bring the weights into their slot.
  virtual void unshard() {}
  /// WAIT_UNSHARD: the handles' weights are valid from here on.
  virtual void wait_unshard() {}
  /// SCALE: finds the float8 scales of the unsharded weights.
  virtual void scale() {}
  /// RESHARD: the handles' weights are gone after this; the slot keeps its bytes until the next UNSHARD into it.
  virtual void reshard() {}

  /// OPEN_GRADIENT: the handles' gradients have storage from here on.
  virtual void open_gradient() = 0;
  /// CLOSE_GRADIENT: the group's gradient of the step is complete on this rank. Where nothing is to be reduced the
  /// gradient shards are valid.
  virtual void close_gradient() = 0;
  /// REDUCE_SCATTER and ALL_REDUCE: begin the sum over shards, and that of shards over replicas.
  virtual void reduce_scatter() {}
  virtual void all_reduce() {}
  /// WAIT_REDUCE: ends the sum that was begun last. After the last one the gradient shards are valid.
  virtual void wait_reduce() {}
  /// REDUCE_PARTIAL: sums the gradient shards of weights that every tensor-parallel rank holds whole.
  virtual void reduce_partial() {}
  /// ADD_TIED: adds the gradient shards of the other rank of a pipeline that holds these weights too.
  virtual void add_tied() {}
  /// TO_HOST: gradient shards leave for the optimizer on the host. From here to `arrive` there are none to read.
  virtual void to_host() {}
  /// The host has waited for all that left: the shards are valid there.
  virtual void arrive() {}
  /// ZERO_GRADIENT: the optimizer is done with the gradient shards.
  virtual void zero_gradient() = 0;

  /// Memory held now for the gradients that the optimizer reads.
  virtual int64_t gradient_bytes() const { return 0; }
  /// The masters were written (initialisation, load, optimizer): copies made from them are stale, except where the
  /// writer wrote them too.
  virtual void weights_changed() = 0;

  // Scales of float8 weights that travel as such, found for all groups at once rather than by each in `refresh`.

  /// The largest magnitude in this rank's shard of each of them, fp32 on the compute device; undefined: there are none.
  virtual at::Tensor largest_magnitudes() { return {}; }
  /// The largest of all ranks, for the present weights.
  virtual void set_largest_magnitudes(const at::Tensor&) {}
};

/// The communicators that weights and gradients travel through; null where the group would have one member.
struct GroupCommunicators {
  std::shared_ptr<Communicator> gather;     // shards of a weight → the weight
  std::shared_ptr<Communicator> scatter;    // gradients → sums, cut; the same ranks, a queue of its own
  std::shared_ptr<Communicator> replicate;  // replicas of a shard
  std::shared_ptr<Communicator> tensor;     // ranks that share every matrix
  std::shared_ptr<Communicator> twins;      // first and last stage of a pipeline, where they share weights
};

/// Every weight stays on the device: masters, a compute copy where the dtypes differ, fp32 gradients. Storage follows
/// the plan's order, so neighbours form fused operands; all three are one block of memory per group. Replicas add their
/// gradients up (DDP).
class ResidentWeights : public Residency {
 public:
  /// `parameters` in the group's storage order. With `transient_gradients` the gradient block lives from its first use
  /// in a step to zero_gradient (an optimizer that steps in backward needs no more).
  ResidentWeights(const WeightGroupPlan& plan, std::vector<Parameter*> parameters, const PlanRequest& request,
                  const at::Device& device, bool transient_gradients, GroupCommunicators communicators = {},
                  Float8Casts casts = make_aten_float8_casts());

  void refresh() override;
  void open_gradient() override;
  void close_gradient() override;
  void all_reduce() override;
  void wait_reduce() override;
  void reduce_partial() override;
  void add_tied() override;
  void zero_gradient() override;
  int64_t gradient_bytes() const override {
    return gradients_.defined() ? static_cast<int64_t>(gradients_.nbytes()) : 0;
  }
  void weights_changed() override;

 private:
  std::vector<at::Tensor> cut(const at::Tensor& block) const;

  WeightGroupPlan plan_;
  std::vector<Parameter*> parameters_;
  GroupCommunicators communicators_;
  Float8Casts casts_;
  bool transient_gradients_;
  at::Tensor masters_;
  at::Tensor copies_;     // undefined when the dtypes agree
  at::Tensor gradients_;  // undefined until first used
  Pending reduction_;
  at::Tensor message_;  // the gradients as they travel, while they do
  Float8Scales scales_;
  bool copied_ = false;  // the copies are of the present masters
};

at::ScalarType scalar_type(ElementType type);

/// Finds the scale of every float8 weight of the group in the weights that operations see now, of all ranks that share
/// matrices, and keeps them in `kept`. Does nothing where the group keeps none.
void scale_weights(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters, const Float8Casts& casts,
                   Communicator* tensor, Float8Scales& kept);

/// The next of `scales` for each float8 weight of `parameters`; `kept` holds the group's from the first time on, so
/// that a scale keeps its place in memory.
void keep_scales(const std::vector<Parameter*>& parameters, Float8Scales scales, Float8Scales& kept);

/// Gives every parameter its place in the plan, its master and what is sent of it; `sends` empty: the masters.
void place_parameters(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters,
                      const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& sends);

/// Sums the gradient shards of all parameters over the two ranks of a pipeline that hold them.
void reduce_twins(const std::vector<Parameter*>& parameters, Communicator& communicator);

/// Sums the gradient shards of parameters that every tensor-parallel rank holds whole, over those ranks.
void reduce_copies(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters, Communicator& communicator);

}  // namespace titan
