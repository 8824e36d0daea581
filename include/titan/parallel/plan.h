// The plan: a pure function of the model's description and the job's choices. It says how every parameter is sharded
// over the ranks, which parameters live together, in what order units use them, what is gathered and reduced when and
// how large it is, what is recomputed and what everything costs. It needs no GPU, no process group and no tensor
// memory; the executor carries it out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/distributed/device_mesh.h"
#include "titan/model/description.h"
#include "titan/model/float8_layers.h"
#include "titan/model/model.h"
#include "titan/ops/context_parallel.h"
#include "titan/ops/recompute.h"
#include "titan/schedule/action.h"

namespace titan {

struct ModelChain;
struct PipelinePlan;

enum class ElementType { float32, bfloat16 };
int64_t size_of(ElementType type);
std::string_view name(ElementType type);

/// How long weights stay unsharded: until other units need their slot of memory, or until the optimizer changes them.
enum class ReshardPolicy {
  standard,  // blocks take turns in two slots, with a pipeline they stay; embedding and head stay
  always,    // blocks take turns; embedding and head share one more slot
  never,     // all stay
};

/// One stage of a pipeline that this rank runs: units [first, last) of the model's chain.
struct StageSpan {
  int64_t number = 0;  // in the model's order
  size_t first = 0;
  size_t last = 0;
};

/// This rank's part of a pipeline.
struct PipelinePart {
  std::vector<StageSpan> stages;       // rising
  std::vector<int64_t> rank_of_stage;  // coordinate on the mesh's axis pp, of every stage
  std::vector<int64_t> rank_of_unit;   // and of every unit of the model's chain
  int64_t microbatches = 1;            // that go through in one pass; a step's accumulation is a multiple
  std::vector<Action> actions;         // of one pass, lowered, without gathers: expand() adds those
  bool splits_backward = false;        // weight gradients wait for actions of their own

  int64_t stage_count() const { return static_cast<int64_t>(rank_of_stage.size()); }
};

/// A batch of validation, which goes through the model at once, whatever microbatches training has.
struct ValidationShape {
  int64_t samples = 1;
  int64_t sequence_length = 1;  // of whole samples
};

/// What the plan is made for.
struct PlanRequest {
  int64_t samples = 1;          // of one microbatch
  int64_t sequence_length = 1;  // of whole samples
  int64_t accumulation = 1;     // microbatches per step
  ElementType master = ElementType::float32;
  ElementType compute = ElementType::float32;
  ElementType reduce = ElementType::float32;  // dtype of gradients in their reduction over data-parallel ranks
  ElementType optimizer_state = ElementType::float32;
  int64_t optimizer_moments = 2;
  bool step_in_backward = false;
  int64_t loss_chunks = 8;
  RecomputeSelection recompute;

  MeshPlace place;
  std::optional<PipelinePart> pipeline;  // none: the chain is one stage
  ReshardPolicy reshard = ReshardPolicy::standard;
  std::vector<std::string> keep_fp32;   // units that compute in fp32, and whose gradients are reduced in it
  std::optional<Float8Request> float8;  // none: every product is made in the compute dtype
  bool loss_parallel = true;
  bool async_tensor_parallel = false;  // hidden states are exchanged in chunks through peer memory, not by collectives
  Rotation rotation = Rotation::all_gather;
  LoadBalance load_balance = LoadBalance::head_tail;
  bool cpu_offload = false;          // masters, optimizer states and reduced gradients live on the host
  bool offload_activations = false;  // of checkpointed units, from forward to backward
  bool offload_optimizer = false;    // moments are on the host and copied to the device for the step
  int64_t norm_message_bytes = 0;    // of the all-reduces of the gradient norm and the loss
  int64_t loss_message_bytes = 0;
  std::optional<ValidationShape> validation;  // none: there is none
  bool on_gpu = false;                        // what follows matters for memory and time only
  bool fused_kernels = false;                 // this project's kernels, not plain ATen operations
  bool fused_loss = false;                    // losses and gradients of logits are computed in place of the logits
  bool cuda_graphs = false;                   // used where the plan allows; they keep the memory of a microbatch
  bool groups_of_one = false;  // groups of one rank exist, and their collectives are called (debug.groups_of_one)

  /// Ranks over which each parameter is cut (FSDP).
  int64_t shards() const { return place.mesh.size(MeshAxis::dp_shard) * place.mesh.size(MeshAxis::cp); }
  /// Whether gradients are summed over replicas.
  bool replicates() const { return place.mesh.size(MeshAxis::dp_replicate) > 1 || groups_of_one; }
  /// Whether ranks that saw other tokens add their gradients to this one's.
  bool reduces_gradients() const { return shards() > 1 || place.mesh.size(MeshAxis::dp_replicate) > 1; }
  /// How samples are dealt out over the context-parallel ranks, and what one of them computes.
  SequenceSplit split() const { return {place.mesh.size(MeshAxis::cp), load_balance}; }
  /// Microbatches of one pass: one, or those that go through a pipeline together.
  int64_t microbatches_per_pass() const { return pipeline ? pipeline->microbatches : 1; }
  /// Whether weight gradients wait for actions of their own.
  bool splits_backward() const { return pipeline && pipeline->splits_backward; }
  int64_t local_length() const { return sequence_length / place.mesh.size(MeshAxis::cp); }
  int64_t tokens() const { return samples * local_length(); }
};

/// One parameter over the ranks, and on this one.
struct ParameterPlan {
  ParameterSpec spec;
  TensorLayout layout;     // the tensor-parallel cut, then FSDP's of dimension 0 of what that leaves
  Box unsharded;           // what operations see on this rank
  Box shard;               // what this rank owns
  int64_t chunk_rows;      // rows of dimension 0 that each rank contributes to a collective, the last ones padded
  bool owns_shard = true;  // of the ranks that hold the same shard, this one reports and saves it
  bool copied_over_tensor = false;  // every tensor-parallel rank holds it whole; its gradients are partial sums
  bool in_float8 = false;           // products with it are made in float8

  bool even(int64_t shards) const { return chunk_rows * shards == unsharded.extent[0]; }
  /// Elements that one rank contributes to a collective.
  int64_t chunk_numel() const;
};

/// Parameters that are gathered, reduced and stored together, in storage order.
struct WeightGroupPlan {
  std::string name;
  std::vector<ParameterPlan> parameters;
  int64_t numel = 0;        // unsharded elements on this rank
  int64_t shard_numel = 0;  // elements this rank owns
  ElementType compute = ElementType::float32;
  ElementType reduce =
      ElementType::float32;     // dtype of its gradient in a reduction; it is accumulated and kept in fp32
  size_t reduce_after = 0;      // its gradient is complete after the backward of this unit
  size_t weight_slot = 0;       // of Plan::weight_slots, when weights are gathered
  size_t gradient_slot = 0;     // of Plan::gradient_slots, when weights are gathered
  bool gathers_float8 = false;  // its float8 weights are gathered in float8
  bool keeps_scales = false;    // one of each float8 weight as a whole, found whenever the weights have changed
  bool is_tied = false;         // tied embeddings of two pipeline ranks, whose gradients add up
  bool is_copy = false;         // the other rank owns it
  size_t message_slot = 0;      // of Plan::message_slots, when its gradient is narrowed

  /// Its gradient is narrowed for the reduction.
  bool narrows_gradient() const { return reduce != ElementType::float32; }
  /// Unsharded elements before parameter `index`.
  int64_t offset_of(size_t index) const;
  /// Bytes of an element of parameter `index` as it is gathered.
  int64_t gathered_size(size_t index) const {
    return gathers_float8 && parameters[index].in_float8 ? 1 : size_of(compute);
  }
  /// Bytes of all unsharded weights as they are gathered, and of this rank's shards of them.
  int64_t gathered_bytes() const;
  int64_t gathered_shard_bytes() const;
  /// Weights whose scale it keeps.
  int64_t scaled_weights() const;
  /// Elements of this rank's shard whose gradients are partial sums: of weights that every tensor-parallel rank holds
  /// whole.
  int64_t partial_numel() const;
};

struct UnitPlan {
  std::string name;
  size_t chain_index = 0;  // in the model's chain
  int stage = 0;           // number of its stage in the model
  bool is_stages_first = false;
  bool is_models_last = false;  // its output is the loss
  UnitRole role = UnitRole::block;
  std::vector<size_t> groups;  // weight groups it uses, its own first
  RecomputePolicy policy = RecomputePolicy::none();
  std::shared_ptr<const UnitTrace> trace;  // of a training microbatch; units that are alike share one
  int64_t saved_bytes = 0;                 // per microbatch, from its forward to its backward
  int64_t forward_peak = 0;                // while it runs, its input and output included
  int64_t backward_peak = 0;               // what was saved and the output's gradient included
  bool offloaded = false;                  // which it spends on the host
  ElementType compute = ElementType::float32;
  bool weights_in_backward = true;    // an embedding's backward reads none
  bool gradients_in_forward = false;  // the head makes its weight gradients in forward
};

/// A stage in this rank's units: [first, last) of Plan::units.
struct StagePlan {
  int64_t number = 0;
  size_t first = 0;
  size_t last = 0;
};

/// One line of the memory table: bytes by purpose.
struct MemoryPurpose {
  std::string name;
  int64_t bytes = 0;
  bool on_host = false;  // where the device is another than the host
};

/// What one step sends through the communicator `group` of `ranks` ranks.
struct GroupTraffic {
  std::string group;
  int64_t ranks = 1;
  TrafficTable table{};
};

struct Plan {
  PlanRequest request;
  std::vector<WeightGroupPlan> groups;
  std::vector<UnitPlan> units;          // that this rank runs, in the chain's order
  std::vector<StagePlan> stages;        // one, unless there is a pipeline
  std::vector<int64_t> weight_slots;    // bytes of each slot that gathered weights take turns in
  std::vector<int64_t> gradient_slots;  // bytes of each slot of gradients before reduction
  std::vector<int64_t> message_slots;   // bytes of each slot of gradients narrowed for their reduction
  int64_t parameter_count = 0;
  int64_t flops_per_token = 0;
  int64_t stream_rows = 0;   // tokens of a microbatch that this rank holds between units
  int64_t stream_width = 0;  // the model's dim
  int64_t stream_bytes = 0;  // of all tokens of a microbatch or a validation's batch, in the widest dtype of a unit
  std::vector<MemoryPurpose> memory;             // at the peak of a step
  std::string peak;                              // when that is: "BACKWARD layers.3 microbatch 0"
  std::vector<MemoryPurpose> validation_memory;  // at that of a validation; empty: there is none
  std::vector<GroupTraffic> traffic;
  std::vector<LinearChoice> float8_layers;  // of the whole model; empty without float8
  /// Bytes per step from the host to the device and back (CPU offload).
  int64_t to_device_bytes = 0;
  int64_t to_host_bytes = 0;
  /// The same each way, of activations and of moments that live on the host by themselves.
  int64_t activation_offload_bytes = 0;
  int64_t optimizer_offload_bytes = 0;

  /// Weights are sharded, or on the host, and are gathered before a unit runs. False: they are resident.
  bool gathers_weights() const { return request.shards() > 1 || request.cpu_offload; }
  /// What is gathered of the group, or multiplied with, is a copy of its masters.
  bool copies_weights(const WeightGroupPlan& group) const {
    return group.gathers_float8 || group.compute != request.master;
  }
  /// The scales of all float8 weights are found at the end of a step, together.
  bool precomputes_scales() const { return gathers_weights() && request.float8 && request.float8->precomputes; }
  /// What async tensor parallelism shares with the ranks of its group; 0 without it.
  int64_t peer_bytes() const;
  /// Whether this rank runs the stage of that number.
  bool has_stage(int64_t number) const;
  /// Whether each microbatch is one CUDA graph: on a single rank with resident weights nothing runs between units.
  /// Otherwise cuda_graphs captures each block.
  bool records_microbatches() const;
  /// The memory table added up, without what is on the host if `device_only`: of a step, of a validation (0: there
  /// is none), and of whichever takes more.
  int64_t training_bytes(bool device_only = false) const;
  int64_t validation_bytes(bool device_only = false) const;
  int64_t predicted_bytes(bool device_only = false) const;
  const GroupTraffic* traffic_of(std::string_view group) const;
};

/// `family` names the recompute policy of each block. Throws Error(bad_config) for tensor-parallel degrees that do not
/// divide what they cut, and for samples that do not divide among the context-parallel ranks.
Plan make_plan(const ModelDescription& model, const ModelFamily& family, const PlanRequest& request);

/// Why blocks of this plan cannot be recorded as CUDA graphs, for users; none: they can.
std::optional<std::string> why_no_graphs(const PlanRequest& request);

// ---- a pipeline's part, and where parameters are

/// The modules of a model as a pipeline may cut them: the head's norm and product stay together.
ModelChain chain_of(const ModelDescription& model);

/// What coordinate `rank` of the axis pp runs. `pipeline` has no problems and was made for chain_of(model).
PipelinePart pipeline_part(const PipelinePlan& pipeline, const ModelDescription& model, int64_t rank);

/// The most pairs of stage and microbatch whose activations the part's actions keep at once: what a simulation of the
/// schedule says of this rank.
int64_t planned_live(const PipelinePart& part);

/// The two coordinates of the axis pp that hold the same weights (tied embeddings); none when one rank has both ends,
/// or nothing is shared.
std::optional<std::pair<int64_t, int64_t>> tied_ranks_of(const PlanRequest& request, const ModelDescription& model);

struct ParameterPlace {
  ParameterSpec spec;
  TensorLayout layout;
  std::vector<int64_t> stages;  // coordinates along pp that hold it, rising; none: all of them do
};

/// Every parameter once, in the chain's order, whichever rank `request` is made for. Weights that stages share (tied
/// embeddings) have the stages of all their users.
std::vector<ParameterPlace> place_parameters(const ModelDescription& model, const PlanRequest& request);

}  // namespace titan
