// Residency: where the weights of one weight group live and when they come and go. The executor calls it at named
// places and knows no more; sharded, offloaded and quantised weights are other implementations.
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

/// Why a unit wants a group's weights.
enum class UsePhase { forward, backward };
struct Use {
  size_t unit = 0;
  UsePhase phase = UsePhase::forward;
  int64_t microbatch = 0;
};

class Residency {
 public:
  virtual ~Residency() = default;

  /// Starts bringing the weights; `acquire` of the same use will find them on their way.
  virtual void prefetch(const Use& use) = 0;
  /// The handles' weights are valid from here on.
  virtual void acquire(const Use& use) = 0;
  /// The handles' weights may be gone after this.
  virtual void release(const Use& use) = 0;
  /// The handles' gradients have storage from here on; a second call within one step changes nothing.
  virtual void gradient_storage() = 0;
  /// The group's gradient of one microbatch is complete; with `is_last` that of the step, and its reduction begins.
  virtual void reduce(bool is_last) = 0;
  /// Between reduce and settle, once: goes on with a reduction that has a second leg (sums of shards over replicas).
  /// Whether something is under way that settle would wait for.
  virtual bool advance() { return false; }
  /// The reduction that began is over: the shards of the gradient are valid.
  virtual void settle() = 0;
  /// Whether something may be under way between reduce and the next call that other work goes on beside.
  virtual bool reduces() const { return true; }
  /// Adds the gradient shards of the other rank of a pipeline that holds these weights too.
  virtual void add_twin() = 0;
  /// Gradient shards whose optimizer runs on the host set out for it. From here to `arrive` there are none to read.
  virtual void send_home() {}
  /// The host has waited for all that set out: the shards are valid there.
  virtual void arrive() {}
  /// The optimizer is done with the gradient shards.
  virtual void finish_step() = 0;
  /// Memory held now for the gradients that the optimizer reads.
  virtual int64_t gradient_bytes() const { return 0; }
  /// The masters were written (initialisation, load, optimizer): copies made from them are stale, except where the
  /// writer wrote them too (Parameter::send_written).
  virtual void weights_changed() = 0;

  // Scales of float8 weights that travel as such, found for all groups at once rather than by each when it needs them.

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
  /// in a step to finish_step (an optimizer that steps in backward needs no more).
  ResidentWeights(const WeightGroupPlan& plan, std::vector<Parameter*> parameters, const PlanRequest& request,
                  const at::Device& device, bool transient_gradients, GroupCommunicators communicators = {},
                  Float8Casts casts = make_aten_float8_casts());

  void prefetch(const Use& use) override;
  void acquire(const Use& use) override;
  void release(const Use& use) override;
  void gradient_storage() override;
  void reduce(bool is_last) override;
  void settle() override;
  void add_twin() override;
  void finish_step() override;
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
  bool gradients_open_ = false;
  Pending reduction_;
  at::Tensor message_;  // the gradients as they travel, while they do
  Float8Scales scales_;
  uint64_t version_ = 1;
  uint64_t copied_version_ = 0;
  uint64_t scaled_version_ = 0;
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

/// Sums the gradient shards of parameters that every tensor-parallel rank holds whole, over those ranks. `communicator`
/// null: does nothing.
void reduce_copies(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters, Communicator* communicator);

}  // namespace titan
