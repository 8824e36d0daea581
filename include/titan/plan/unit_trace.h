// A unit's forward without data: the same operations in the same order. Each declares, next to its code, what it
// computes, moves, sends and saves for backward. Memory, traffic, FLOPs and time of a step are sums over traces, so a
// new model needs no formula. A new operation needs one declaration (`trace_...`, in its own file), which every unit
// that uses it calls in its trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/plan/collective.h"
#include "titan/plan/precision.h"
#include "titan/plan/recompute_policy.h"

namespace titan {

/// What a trace is made for: one microbatch on one rank. Sizes are in bytes.
struct TraceShape {
  int64_t samples = 1;
  int64_t length = 1;          // positions of a sequence on this context-parallel rank
  int64_t element_size = 4;    // of the compute dtype
  int64_t gradient_size = 4;   // of an element of the weights' gradients
  bool on_gpu = false;         // which path of the code runs
  bool fused_kernels = false;  // on a GPU: this project's kernels instead of plain ATen operations

  int64_t tensor_ranks = 1;
  bool async_tensor_parallel = false;  // hidden states go through peer memory, and no collective is called
  struct Loss {
    int64_t chunks = 8;     // of the tokens, one after the other
    bool parallel = true;   // tensor-parallel ranks compute it of their shards of the vocabulary
    bool in_place = false;  // losses and gradients of logits are computed in place of the logits
  } loss = {};

  int64_t context_ranks = 1;
  bool rotates_by_all_gather = true;  // else keys and values are passed around the ring
  double causal_share = 0.5;          // computed share of all pairs of a local query and a key of any rank

  std::optional<Float8Recipe> float8 = {};
  std::vector<std::string> float8_parameters = {};  // weights whose products are in float8
  bool keeps_float8_weights = false;                // and their transposed float8 copies are kept for backward
  bool gathers_float8 = false;                      // and they are all-gathered in float8
  bool reads_weights_for_scales = true;             // else the optimizer finds their amaxes
  std::vector<std::string> frozen_parameters = {};  // weights without a gradient

  int64_t tokens() const { return samples * length; }
  bool in_float8(const std::string& parameter) const;
  bool trains(const std::string& parameter) const;
};

/// Index of a tensor of the trace.
using TracedTensor = int;
inline constexpr TracedTensor kNoTensor = -1;

enum class WorkKind : uint8_t { product, float8_product, attention, memory };

/// Work of one or more kernels.
struct TracedWork {
  WorkKind kind = WorkKind::memory;
  double operations = 0;            // floating-point; a product of [m, k] and [k, n]: 2·m·k·n
  double bytes = 0;                 // read plus written, each address once per kernel
  double wide_bytes = 0;            // of these: what a product's result takes beyond one write in the compute dtype
  bool is_weight_gradient = false;  // can be deferred
  bool spared_by_replay = false;    // backward skips this work if a replay ran the forward
  TracedTensor makes = kNoTensor;   // a replay that does not recompute this result skips the work
};

enum class WhenReplayed : uint8_t {
  with_results,  // when a result of the operation is recomputed
  always,        // in every unit that is checkpointed
};

/// One or more collectives within the unit; bytes as in Traffic.
struct TracedMessage {
  std::string_view communicator = {};
  Collective kind = Collective::all_gather;
  Traffic traffic = {};
  bool through_peer_memory = false;  // not counted by a communicator
  WhenReplayed replayed = WhenReplayed::with_results;
};

struct TracedOperation {
  std::string_view name = {};
  std::vector<TracedTensor> inputs = {};  // backward computes their gradients
  std::vector<TracedTensor> results = {};
  std::vector<TracedTensor> saved = {};  // what its backward reads
  std::vector<TracedTensor> saved_in_replay =
      {};                        // what backward reads instead of `saved` if a replay ran the forward; empty: `saved`
  int64_t forward_scratch = 0;   // bytes beyond inputs, results and saved tensors while it runs
  int64_t training_scratch = 0;  // additional bytes if gradients are computed in forward
  int64_t backward_scratch = 0;  // bytes beyond gradients and saved tensors
  int64_t saved_beside = 0;      // saved bytes outside the trace's tensors (weights' float8 copies)
  bool shares_gradient = false;  // all inputs share one gradient tensor
  bool passes_gradient = false;  // an input's gradient is the gradient of the result, or a saved tensor
  bool is_closing = false;       // a replay does not need its result
  bool defers = false;           // its weight gradients can run in a separate instruction
  std::vector<TracedWork> forward = {}, backward = {};
  std::vector<TracedMessage> forward_messages = {}, backward_messages = {};
};

class UnitTrace {
 public:
  explicit UnitTrace(TraceShape shape) : shape_(std::move(shape)) {}
  const TraceShape& shape() const { return shape_; }

  /// A new tensor; recorded under (kind, ordinal) for the recompute policy, or not recorded.
  TracedTensor tensor(int64_t bytes, std::optional<ResultKind> kind = std::nullopt, int ordinal = 0);
  /// A tensor in the memory of `other`, unless the policy keeps `other` for the replay.
  TracedTensor in_place_of(TracedTensor other, std::optional<ResultKind> kind = std::nullopt, int ordinal = 0);
  int64_t bytes(TracedTensor tensor) const { return tensors_[static_cast<size_t>(tensor)].bytes; }
  void add(TracedOperation operation) { operations_.push_back(std::move(operation)); }
  /// The hidden states that enter and leave the unit, in the order of UnitDescription::hands_on. None enter an
  /// embedding; none leave a head.
  void set_ends(std::vector<TracedTensor> inputs, std::vector<TracedTensor> outputs) {
    inputs_ = std::move(inputs), outputs_ = std::move(outputs);
  }
  const std::vector<TracedTensor>& inputs() const { return inputs_; }
  const std::vector<TracedTensor>& outputs() const { return outputs_; }

  const std::vector<TracedOperation>& operations() const { return operations_; }

  // ---- Memory, in bytes

  /// Held from forward to backward, the input included.
  int64_t saved_bytes(const RecomputePolicy& policy) const;
  /// Peak of a forward that trains, input and output included.
  int64_t forward_peak(const RecomputePolicy& policy) const;
  /// Peak of a forward that keeps nothing, input and output included.
  int64_t evaluation_peak() const;
  /// Held from backward to deferred weight gradients: inputs, and gradients of outputs.
  int64_t deferred_bytes(const RecomputePolicy& policy) const;
  /// Peak of backward, with saved tensors and the output's gradient included.
  int64_t backward_peak(const RecomputePolicy& policy) const;

  // ---- Work and messages

  enum class Phase : uint8_t { forward, replay, backward };
  /// What one operation does in a phase.
  struct Part {
    const TracedOperation* operation;
    std::vector<const TracedWork*> work;
    std::vector<const TracedMessage*> messages;
  };
  /// The parts of a phase in the order in which they run: in backward the operations in reverse.
  std::vector<Part> parts(Phase phase, const RecomputePolicy& policy) const;

 private:
  struct Tensor {
    int64_t bytes = 0;
    std::optional<ResultKind> kind;
    int ordinal = 0;
    TracedTensor in_place_of = kNoTensor;
  };
  class Live;

  Keep fate(TracedTensor tensor, const RecomputePolicy& policy) const;
  bool recomputes(const TracedOperation& operation, const RecomputePolicy& policy) const;
  /// True if backward follows a replay that runs the operation's forward.
  bool replays(const TracedOperation& operation, const RecomputePolicy& policy) const {
    return policy.checkpointed() && recomputes(operation, policy);
  }
  void hold_saved(Live& live, const TracedOperation& operation, const RecomputePolicy& policy, bool release) const;
  /// The tensor whose memory this one uses.
  TracedTensor memory_of(TracedTensor tensor, const RecomputePolicy& policy) const;
  std::vector<size_t> last_uses(const RecomputePolicy& policy) const;
  void run_forward(Live& live, const RecomputePolicy& policy, bool saves, bool is_replay) const;
  void run_backward(Live& saved, const RecomputePolicy& policy) const;

  TraceShape shape_;
  std::vector<Tensor> tensors_;
  std::vector<TracedOperation> operations_;
  std::vector<TracedTensor> inputs_, outputs_;
};

}  // namespace titan
