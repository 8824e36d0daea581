// The plan: a pure function of the model's description and the job's choices. It defines how every parameter is sharded
// over the ranks, which parameters are grouped, in what order units use them, what is gathered and reduced when and how
// large it is, what is recomputed and what everything costs. It needs no GPU, no communicator and no tensor memory;
// the executor runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/plan/collective.h"
#include "titan/plan/description.h"
#include "titan/plan/device_mesh.h"
#include "titan/plan/float8_layers.h"
#include "titan/plan/precision.h"
#include "titan/plan/recompute_policy.h"
#include "titan/plan/sequence_split.h"
#include "titan/plan/tensor_layout.h"
#include "titan/plan/update.h"
#include "titan/schedule/action.h"

namespace titan {

struct ModelChain;
struct PipelinePlan;

/// Bytes of a step's messages between ranks. The norm: the slots of the exact sum of squares (kExactSlots of
/// kernels/exact_sum.h, which step_runner.h compares) and two requests, int64. The loss: itself and two requests,
/// double.
inline constexpr int64_t kNormMessageBytes = 24 * 8;
inline constexpr int64_t kLossMessageBytes = 3 * 8;

/// One stage of a pipeline that this rank runs: units [first, last) of the model's chain.
struct StageSpan {
  int64_t number = 0;  // in the model's order
  size_t first = 0;
  size_t last = 0;
};

/// This rank's part of a pipeline.
struct PipelinePart {
  std::vector<StageSpan> stages;       // ascending
  std::vector<int64_t> rank_of_stage;  // coordinate of every stage on the mesh's axis pp
  std::vector<int64_t> rank_of_unit;   // coordinate of every unit of the model's chain
  int64_t microbatches = 1;            // microbatches of one pass; a step's accumulation is a multiple
  std::vector<Action> actions;         // of one pass, lowered, without gathers: expand() adds them
  bool splits_backward = false;        // weight gradients are separate actions

  int64_t stage_count() const { return static_cast<int64_t>(rank_of_stage.size()); }
};

/// The inputs of the plan: sections of the config, the rank's place, and what follows from several options.
struct PlanRequest {
  PlanRequest();  ///< the default config's
  explicit PlanRequest(const JobConfig& config);

  TrainingSection training;  ///< the shape of a pass is below: local_batch_size and seq_len are not read
  ParallelismSection parallelism;
  OptimizerSection optimizer;
  ValidationSection validation;               ///< a batch passes through the model as one microbatch
  std::optional<LinearFloat8Section> float8;  ///< none: every product is in the compute dtype
  RecomputeSelection recompute;

  MeshPlace place;
  std::optional<PipelinePart> pipeline;  // none: the chain is one stage
  int64_t samples = 1;                   // of one microbatch
  int64_t sequence_length = 1;           // of whole samples
  int64_t accumulation = 1;              // microbatches per step
  /// How optimizers step parameters, and which of these steps one; none: the first steps all. One that is computed of
  /// whole matrices needs gradients on the device, and all of them before the first step.
  std::vector<UpdateDescription> updates = {{}};
  std::function<size_t(const UnitDescription&, const ParameterSpec&)> update_of = {};
  bool offload_activations = false;  // of checkpointed units, from forward to backward
  bool on_gpu = false;               // from here to cuda_graphs: affects only memory and time
  bool fused_kernels = false;        // this project's kernels, not plain ATen operations
  bool fused_loss = false;           // losses and gradients of logits are computed in place of the logits
  bool cuda_graphs = false;          // used where the plan allows; they keep a microbatch's memory allocated
  bool groups_of_one =
      false;  // communicators of one rank exist, and their collectives are called (debug.groups_of_one)

  /// Hidden states are exchanged in chunks through peer memory, not by collectives.
  bool async_tensor_parallel() const {
    return parallelism.enable_async_tensor_parallel && place.mesh.size(MeshAxis::tp) > 1;
  }
  /// Moments are on the host and copied to the device for the step. (With CPU offload the step is on the host, too.)
  bool offloads_optimizer() const { return optimizer.offload && !training.enable_cpu_offload; }
  /// Ranks over which most weight groups are sharded (FSDP); a group may say otherwise (GroupAxes).
  int64_t shards() const { return place.mesh.size(MeshAxis::dp_shard) * place.mesh.size(MeshAxis::cp); }
  /// How a sequence is split over the context-parallel ranks.
  SequenceSplit split() const { return {place.mesh.size(MeshAxis::cp), parallelism.context_parallel_load_balancer}; }
  /// Microbatches of one pass: one, or those that pass through a pipeline together.
  int64_t microbatches_per_pass() const { return pipeline ? pipeline->microbatches : 1; }
  /// True if weight gradients are separate actions.
  bool splits_backward() const { return pipeline && pipeline->splits_backward; }
  /// Tokens of all ranks together.
  int64_t tokens_per_step() const {
    return samples * sequence_length * accumulation * place.mesh.data_parallel_degree();
  }
  int64_t local_length() const { return sequence_length / place.mesh.size(MeshAxis::cp); }
  int64_t tokens() const { return samples * local_length(); }
};

/// How a weight group lies over the mesh: which ranks hold parts of it, and which ranks' gradients are added. Ranks
/// that differ along dp_replicate, dp_shard or cp see different tokens, so a gradient is summed over each of these axes
/// unless the group is split over it: then each rank computes with a part of its own.
struct GroupAxes {
  std::vector<MeshAxis> sharded;     // FSDP: weights are gathered over these axes, gradients summed and scattered
  std::vector<MeshAxis> replicated;  // gradients are summed
  int64_t shards = 1;                // ranks along `sharded`
  int64_t replicas = 1;              // along `replicated`
  bool sums_replicas = false;        // there are several, or communicators of one rank are wanted
  // Names of the communicators (axes_of): of all-gathers, of reduce-scatters, and of sums over replicas. Empty: none.
  std::string gather, scatter, replicate;
};

/// The layout of one parameter over the ranks, and its part on this rank.
struct ParameterPlan {
  ParameterSpec spec;
  TensorLayout layout;     // parts that ranks compute with, each sharded by FSDP along dimension 0
  Box unsharded;           // what operations see on this rank
  Box shard;               // what this rank owns
  int64_t chunk_rows;      // rows of dimension 0 that each rank contributes to a collective; the last ranks' are padded
  bool owns_shard = true;  // of the ranks with the same shard, this one reports and saves it
  bool in_norm = true;     // of the ranks with the same shard that add up the norm of one replica, this one counts it
  bool copied_over_tensor = false;  // every tensor-parallel rank holds it whole; its gradients are partial sums
  bool in_float8 = false;           // its products are in float8
  size_t update = 0;                // of PlanRequest::updates
  size_t number = 0;                // of those of the whole model that an update with statistics steps

  bool even(int64_t shards) const { return chunk_rows * shards == unsharded.extent[0]; }
  /// Elements that one rank contributes to a collective.
  int64_t chunk_numel() const;
};

/// A matrix whose update one of several ranks computes as a whole; they hold parts of it, or copies.
struct WholeMatrix {
  size_t parameter = 0;  // of the group
  int64_t owner = 0;     // the member of WeightGroupPlan::matrix_communicator that computes the update
};

/// Parameters that are gathered, reduced and stored together, in storage order.
struct WeightGroupPlan {
  std::string name;
  std::vector<ParameterPlan> parameters;
  GroupAxes axes;
  bool gathers = false;     // weights are sharded, or on the host, and gathered before a unit runs; else resident
  int64_t numel = 0;        // unsharded elements on this rank
  int64_t shard_numel = 0;  // elements this rank owns
  ElementType compute = ElementType::float32;
  ElementType reduce = ElementType::float32;    // dtype in which its gradient is reduced
  ElementType gradient = ElementType::float32;  // in which it is accumulated and kept; bf16 only if it is written once
  size_t reduce_after = 0;                      // its gradient is complete after the backward of this unit
  size_t weight_slot = 0;                       // of Plan::weight_slots, when weights are gathered
  size_t gradient_slot = 0;                     // of Plan::gradient_slots, when weights are gathered
  bool gathers_float8 = false;                  // its float8 weights are gathered in float8
  bool keeps_scales = false;  // holds one scale per whole float8 weight, recomputed when weights change
  bool is_tied = false;       // tied embeddings of two pipeline ranks, whose gradients are summed
  bool is_copy = false;       // the other rank owns it
  size_t message_slot = 0;    // of Plan::message_slots, if its gradient is narrowed
  std::vector<WholeMatrix> matrices;
  std::string matrix_communicator;  // the ranks that hold parts of these matrices
  /// Of replicas that each compute the updates of its matrices, this one's are in the statistics.
  bool measures_matrices = true;

  /// True if its gradient is cast to a narrower dtype for the reduction.
  bool narrows_gradient() const { return reduce != ElementType::float32; }
  /// Bytes of an element of parameter `index` as it is gathered.
  int64_t gathered_size(size_t index) const {
    return gathers_float8 && parameters[index].in_float8 ? 1 : size_of(compute);
  }
  /// Bytes of all unsharded weights as gathered, and of this rank's shards of them.
  int64_t gathered_bytes() const;
  int64_t gathered_shard_bytes() const;
  /// The number of weights whose scale it holds.
  int64_t scaled_weights() const;
  /// False if every parameter is frozen: the group has no gradient, and the optimizer does not step it.
  bool is_trained() const;
  /// Elements of the trained parameters, the only ones with a gradient: unsharded, and of this rank's shard, which the
  /// optimizer steps.
  int64_t trained_numel() const;
  int64_t trained_shard_numel() const;
  /// Bytes of the gradient of this rank's shard.
  int64_t gradient_bytes() const { return trained_shard_numel() * size_of(gradient); }
  /// The elements among trained_shard_numel() whose gradients are partial sums, because every tensor-parallel rank
  /// holds the weight whole.
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
  std::shared_ptr<const UnitTrace> trace;  // of a training microbatch; identical units share one
  int64_t saved_bytes = 0;                 // per microbatch, from its forward to its backward
  int64_t forward_peak = 0;                // while it runs, its input and output included
  int64_t backward_peak = 0;               // what was saved and the output's gradient included
  bool offloaded = false;                  // the saved bytes are on the host from forward to backward
  ElementType compute = ElementType::float32;
  bool weights_in_backward = true;     // false for an embedding, whose backward reads no weights
  bool gradients_in_forward = false;   // true for the head, which computes its weight gradients in forward
  std::vector<HiddenTensor> takes;     // of the unit before; of the model's first: nothing but token ids
  std::vector<HiddenTensor> hands_on;  // to the next unit; of the model's last: nothing, it returns the loss
  std::vector<size_t> statistics;      // of Plan::statistics: what its forward returns after that
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
  bool on_host = false;  // these bytes are in host memory; without a GPU all bytes are
};

/// What one step sends through the communicator of that name with `ranks` ranks.
struct CommunicatorTraffic {
  std::string communicator;
  int64_t ranks = 1;
  TrafficTable table{};
};

struct Plan {
  Plan() = default;
  explicit Plan(PlanRequest its_request) : request(std::move(its_request)) {}

  PlanRequest request;
  std::vector<WeightGroupPlan> groups;
  std::vector<UnitPlan> units;          // units of this rank, in the chain's order
  std::vector<StagePlan> stages;        // one, unless there is a pipeline
  std::vector<int64_t> weight_slots;    // bytes of each slot that gathered weights share
  std::vector<int64_t> gradient_slots;  // bytes of each slot of gradients before reduction
  std::vector<int64_t> message_slots;   // bytes of each slot of gradients narrowed for their reduction
  int64_t parameter_count = 0;
  int64_t flops_per_token = 0;
  int64_t hidden_rows = 0;   // tokens of a microbatch that this rank holds between units
  int64_t hidden_bytes = 0;  // of all tokens of a microbatch or a validation batch, in the widest dtype of a unit
  std::vector<MemoryPurpose> memory;             // at the peak of a step
  std::string peak;                              // the instruction at the peak: "BACKWARD layers.3 microbatch 0"
  std::vector<MemoryPurpose> validation_memory;  // at the peak of a validation; empty: no validation
  /// Of the whole model, one of each name, then those of updates; a message has them in this order.
  std::vector<StatisticDescription> statistics;
  size_t first_update_statistic = 0;
  size_t numbered_parameters = 0;  // those that have a ParameterPlan::number, in the whole model
  std::vector<CommunicatorTraffic> traffic;
  std::vector<LinearChoice> float8_layers;  // of the whole model; empty without float8
  /// Bytes per step from the host to the device and back (CPU offload).
  int64_t to_device_bytes = 0;
  int64_t to_host_bytes = 0;
  /// Bytes per step in each direction, of offloaded activations and of moments that are offloaded without CPU offload.
  int64_t activation_offload_bytes = 0;
  int64_t optimizer_offload_bytes = 0;

  /// True if a weight group is gathered before its unit runs.
  bool gathers_weights() const;
  /// Bytes of the moments on this rank, of one parameter or of the trained parameters of a group.
  int64_t moment_bytes(const ParameterPlan& parameter) const;
  int64_t moment_bytes(const WeightGroupPlan& group) const;
  /// True if the weights that are gathered or multiplied are copies of the masters.
  bool copies_weights(const WeightGroupPlan& group) const {
    return group.gathers_float8 || group.compute != request.training.dtype;
  }
  /// True if the scales of all float8 weights are computed together at the end of a step.
  bool precomputes_scales() const {
    return gathers_weights() && request.float8 && request.float8->enable_fsdp_float8_all_gather &&
           request.float8->precompute_float8_dynamic_scale_for_fsdp;
  }
  /// Elements of all statistics, and of those before one of them: where a message has it.
  int64_t statistics_numel() const { return first_of_statistic(statistics.size()); }
  int64_t first_of_statistic(size_t index) const;
  /// The tensors in a message that an action of this stage sends or receives: its output or its gradient, or
  /// (`of_input`) its input or that gradient. Their rows are tokens, their dtype is training.mixed_precision_param.
  const std::vector<HiddenTensor>& message_of(int stage, bool of_input) const;
  /// Bytes of these tensors of one microbatch in a message.
  int64_t message_bytes(std::span<const HiddenTensor> tensors) const;
  /// Bytes of peer memory that async tensor parallelism shares within its communicator; 0 without it.
  int64_t peer_bytes() const;
  /// True if this rank runs the stage of that number.
  bool has_stage(int64_t number) const;
  /// True if each microbatch is one CUDA graph: on a single rank with resident weights nothing runs between units. If
  /// false, cuda_graphs captures each block.
  bool records_microbatches() const;
  /// Totals of the memory table, without host memory if `device_only`: of a step, of a validation (0: none), and the
  /// larger of the two.
  int64_t training_bytes(bool device_only = false) const;
  int64_t validation_bytes(bool device_only = false) const;
  int64_t predicted_bytes(bool device_only = false) const;
};

/// Throws Error(bad_config) if an axis does not divide a dimension that is split over it, or if samples do not divide
/// among the context-parallel ranks.
Plan make_plan(const ModelDescription& model, const PlanRequest& request);

/// True if float8 weights are cast once per microbatch and their transposed copies kept for backward. Needs tensorwise
/// scales without casting again in backward, resident weights, no tensor parallelism, and microbatches one after the
/// other.
bool keeps_float8_weights(const PlanRequest& request);

/// Names of the communicators that weight groups of other axes than most need beyond fsdp_gather, fsdp_scatter and
/// dp_replicate, sorted: of these groups; of the whole model, so that all ranks make the same ones.
std::vector<std::string> weight_communicators(const std::vector<WeightGroupPlan>& groups);
std::vector<std::string> weight_communicators(const ModelDescription& model, const PlanRequest& request);

/// Where the parts of a whole matrix are, by member of its group's matrix_communicator.
struct MatrixParts {
  int64_t own = 0;          // this rank's number
  std::vector<Box> boxes;   // what each holds
  std::vector<bool> sends;  // of those that hold the same, the one in the owner's replica, unless the owner has it
};
MatrixParts matrix_parts(const Plan& plan, const WeightGroupPlan& group, const WholeMatrix& matrix);

/// What this rank sends and holds to update the whole matrices of a group, in bytes. Without other ranks only `largest`
/// and `operations`, which are of the optimizer's step.
struct MatrixBytes {
  int64_t collected = 0;                  // sent to other owners
  int64_t returned = 0;                   // sent by this owner to the others
  int64_t owned = 0;                      // matrices that this rank updates
  int64_t largest = 0;                    // of these, and of this rank's parts of the others
  int64_t shards = 0;                     // this rank's parts of the others
  int64_t parts = 0;                      // its parts of all
  double operations = 0;                  // of the updates that this rank computes
  std::vector<MatrixShape> updated = {};  // the matrices of these updates
};
MatrixBytes matrix_bytes(const Plan& plan, const WeightGroupPlan& group);

/// The reason why blocks of this plan cannot be recorded as CUDA graphs, for users; none: they can.
std::optional<std::string> why_no_graphs(const PlanRequest& request);

// ---- a pipeline rank's part, and the placement of parameters

/// The modules of a model that a pipeline can split; the head's norm and product stay together.
ModelChain chain_of(const ModelDescription& model);

/// The part of coordinate `rank` of the axis pp. `pipeline` has no problems and was made for chain_of(model).
PipelinePart pipeline_part(const PipelinePlan& pipeline, const ModelDescription& model, int64_t rank);

/// The largest number of (stage, microbatch) pairs whose activations the part's actions keep at once: the simulated
/// value for this rank.
int64_t planned_live(const PipelinePart& part);

/// The two coordinates of the axis pp that hold the same weights (tied embeddings); none if one rank has both ends, or
/// nothing is shared.
std::optional<std::pair<int64_t, int64_t>> tied_ranks_of(const PlanRequest& request, const ModelDescription& model);

/// The box of a tensor with this layout that `rank` of the mesh holds, of a layout that a plan made.
Box shard_on(const TensorLayout& layout, const DeviceMesh& mesh, int64_t rank);

struct ParameterPlace {
  ParameterSpec spec;
  TensorLayout layout;
  std::vector<int64_t> stages;  // coordinates along pp that hold it, ascending; none: all of them
  size_t update = 0;            // of PlanRequest::updates
};

/// Every parameter once, in the chain's order, independent of the rank of `request`. Weights that stages share (tied
/// embeddings) have the stages of all their users.
std::vector<ParameterPlace> place_parameters(const ModelDescription& model, const PlanRequest& request);

}  // namespace titan
