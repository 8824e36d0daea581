// The operations of a model as a plan sees them: their kinds, and a `trace_…` function for each, which declares what
// the operation computes, moves, sends and saves for backward. The code of an operation is in the file of `ops` with
// the same name; a unit's forward calls the one, its trace the other, in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "titan/config/choices.h"
#include "titan/plan/unit_trace.h"

namespace titan {

bool is_rms_norm(NormType type);
/// Rows whose weight gradients one task of the CPU kernel sums. Not a share of the rows: the order of the sum, and so
/// its bits, would depend on the number of threads. Each task has a row of fp32 sums, which is scratch in the plan.
inline constexpr int64_t kNormBlockRows = 128;

struct TracedNorm {
  TracedTensor residual, normed;
};
/// The trace of Norm::forward over hidden states of `width`; `delta` may be kNoTensor.
TracedNorm trace_norm(UnitTrace& trace, NormType type, TracedTensor residual, TracedTensor delta, int64_t width,
                      int ordinal);
TracedTensor trace_closing(UnitTrace& trace, TracedTensor residual, TracedTensor delta);

/// The trace of rotate(): query and key are overwritten, unless the recorder keeps them.
std::pair<TracedTensor, TracedTensor> trace_rotate(UnitTrace& trace, TracedTensor query, TracedTensor key);

/// Which side of a group is the residual stream, whose tokens may be sharded. The other side has all tokens and may be
/// sharded by features.
enum class LinearSplit { input, output };

struct TracedWeight {
  std::string name;
  int64_t outputs = 0;  // of all tensor-parallel ranks
};
/// The trace of ParallelLinear::forward; `x` has `inputs` features over all tensor-parallel ranks. `copied_gradients`:
/// with column gradients, the features whose gradients are copied to their columns; -1: without.
std::vector<TracedTensor> trace_linear(UnitTrace& trace, TracedTensor x, int64_t inputs,
                                       const std::vector<TracedWeight>& weights, int first_ordinal, LinearSplit side,
                                       bool reads_alone = true, int64_t copied_gradients = -1);

/// The trace of attention over this rank's heads: [samples, length, heads, head_dim]. Ring attention if the trace has
/// context-parallel ranks.
TracedTensor trace_attention(UnitTrace& trace, TracedTensor query, TracedTensor key, TracedTensor value,
                             int64_t head_dim);

/// The trace of swiglu(): silu(gate) · up.
TracedTensor trace_swiglu(UnitTrace& trace, TracedTensor gate, TracedTensor up);

/// The trace of add_bias().
TracedTensor trace_bias(UnitTrace& trace, TracedTensor x);

/// The trace of embedding(): a row of `width` per token of the microbatch. Without a trained weight backward does
/// nothing.
TracedTensor trace_embedding(UnitTrace& trace, int64_t width, bool trained = true);

/// The trace of linear_cross_entropy over hidden states of `width` and the whole `vocabulary`; the weight is `trained`,
/// or frozen.
void trace_cross_entropy(UnitTrace& trace, TracedTensor hidden, int64_t width, int64_t vocabulary, bool trained = true);

}  // namespace titan
