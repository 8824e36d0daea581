#include "titan/plan/operations.h"

#include <algorithm>

#include "titan/plan/device_mesh.h"

namespace titan {

bool is_rms_norm(NormType type) { return type == NormType::rmsnorm || type == NormType::fused_rmsnorm; }

// Plain operations on a GPU convert to fp32 and back and write every intermediate result. The fused kernels read and
// write each tensor once.
TracedNorm trace_norm(UnitTrace& trace, NormType type, TracedTensor residual, TracedTensor delta, int64_t width,
                      int ordinal) {
  const TraceShape& shape = trace.shape();
  const int64_t bytes = trace.bytes(residual), numel = bytes / shape.element_size, rows = numel / width;
  const bool rms = is_rms_norm(type), fused = shape.fused_kernels && rms, sums = delta != kNoTensor;
  TracedNorm result{};
  TracedOperation operation{.name = "norm", .inputs = {residual}, .shares_gradient = true};
  if (sums) operation.inputs.push_back(delta);
  result.residual = sums ? trace.tensor(bytes, ResultKind::residual, ordinal) : trace.in_place_of(residual);
  result.normed = trace.tensor(bytes, ResultKind::norm, ordinal);
  const TracedTensor statistics = trace.tensor(4 * rows * (rms ? 1 : 2), ResultKind::norm, ordinal);
  operation.results = {result.residual, result.normed, statistics};
  operation.saved = {result.residual, statistics};
  const int64_t wide = 4 * numel, copy = shape.element_size == 4 ? 0 : wide;  // an fp32 tensor needs no fp32 copy
  const bool on_cpu_kernel = !shape.on_gpu && rms;
  if (on_cpu_kernel) {
    operation.backward_scratch = 4 * width * ((rows + kNormBlockRows - 1) / kNormBlockRows + 1);
  } else if (!fused) {
    operation.forward_scratch = rms ? 2 * wide : 2 * copy;
    operation.backward_scratch = 2 * wide + 3 * copy;
  }
  const double adds = sums ? 3.0 : 0;
  const double size = static_cast<double>(shape.element_size);
  const double forward = fused ? (sums ? 4 : 2) * size : (3 + adds) * size + 28;
  const double backward = fused ? 4 * size : 4 * size + 96;
  operation.forward = {{.bytes = forward * static_cast<double>(numel)}};
  operation.backward = {{.bytes = backward * static_cast<double>(numel)}};
  trace.add(std::move(operation));
  return result;
}

TracedTensor trace_closing(UnitTrace& trace, TracedTensor residual, TracedTensor delta) {
  const TracedTensor sum = trace.tensor(trace.bytes(residual));
  trace.add({.name = "residual add",
             .inputs = {residual, delta},
             .results = {sum},
             .shares_gradient = true,
             .passes_gradient = true,
             .is_closing = true,
             .forward = {{.bytes = 3.0 * static_cast<double>(trace.bytes(sum))}}});
  return sum;
}

std::pair<TracedTensor, TracedTensor> trace_rotate(UnitTrace& trace, TracedTensor query, TracedTensor key) {
  const TraceShape& shape = trace.shape();
  const bool plain = shape.on_gpu && !shape.fused_kernels;
  const int64_t bytes = trace.bytes(query) + trace.bytes(key), numel = bytes / shape.element_size;
  const double moved = plain ? static_cast<double>(2 * bytes + 16 * numel) : static_cast<double>(2 * bytes);
  const TracedTensor turned_query = trace.in_place_of(query, ResultKind::rotary, 0);
  const TracedTensor turned_key = trace.in_place_of(key, ResultKind::rotary, 0);
  const int64_t scratch = plain ? 8 * trace.bytes(query) / shape.element_size : 0;
  trace.add({.name = "rotary",
             .inputs = {query, key},
             .results = {turned_query, turned_key},
             .forward_scratch = scratch,
             .backward_scratch = scratch,
             .forward = {{.bytes = moved}},
             .backward = {{.bytes = moved}}});
  return {turned_query, turned_key};
}

namespace {

// Keys and values are exchanged in forward and again in backward, where their fp32 gradients pass around the ring.
void add_ring(const UnitTrace& trace, TracedOperation& operation, int64_t query_numel, int64_t key_value_numel) {
  using communicator_names::kContext;
  const TraceShape& shape = trace.shape();
  const int64_t ranks = shape.context_ranks, size = shape.element_size, bytes = key_value_numel * size;
  const int64_t copies = shape.rotates_by_all_gather ? ranks + 1 : 2;
  const int64_t wide = 4;
  // In addition, forward holds the fp32 sum of the outputs, and on a GPU one rank's part in several forms: as computed,
  // in fp32, its difference to the sum, and that weighted. Backward holds the fp32 gradient of the queries, and three
  // shares of the gradients of keys and values (computed, being received, being sent).
  const int64_t part = size + (size == wide ? 2 : 3) * wide;
  operation.forward_scratch = copies * bytes + wide * query_numel + (shape.on_gpu ? (part - size) * query_numel : 0);
  operation.backward_scratch = copies * bytes + 3 * wide * key_value_numel + wide * query_numel;
  const TracedMessage rotation = shape.rotates_by_all_gather
                                     ? TracedMessage{kContext, Collective::all_gather, {1, ranks * bytes}}
                                     : TracedMessage{kContext, Collective::permute, {ranks - 1, (ranks - 1) * bytes}};
  operation.forward_messages = {rotation};
  operation.backward_messages = {rotation, {kContext, Collective::permute, {ranks, ranks * key_value_numel * wide}}};
}

/// Additions around the ring's kernels on a GPU (merge_dense_attention, add_dense_gradients). In a step with the keys
/// of another rank, either half of this rank's queries attend to all of the keys, or all of its queries to half of
/// them.
void add_merges(const TraceShape& shape, TracedOperation& operation, double query_numel, double key_value_numel) {
  constexpr double kWide = 4;
  const double size = static_cast<double>(shape.element_size), ranks = static_cast<double>(shape.context_ranks);
  const double steps = 1 + 0.75 * (ranks - 1), added = steps * (size + 2 * kWide), rounded = kWide + size;
  // A part is converted to fp32 (which writes one value an element), the sum is subtracted from it (three values move),
  // the difference is weighted (two) and added to the sum (three).
  operation.forward.push_back({.bytes = query_numel * (steps * (size + 9 * kWide) + kWide + rounded)});
  // Gradients are added to zeros; those of keys and values also to the sum received from the previous rank.
  operation.backward.push_back({.bytes = query_numel * (added + kWide + rounded) +
                                         key_value_numel * (added + (4 * ranks - 3) * kWide + rounded)});
}

}  // namespace

TracedTensor trace_attention(UnitTrace& trace, TracedTensor query, TracedTensor key, TracedTensor value,
                             int64_t head_dim) {
  const TraceShape& shape = trace.shape();
  const int64_t size = shape.element_size, rows = shape.tokens();
  const int64_t numel = trace.bytes(query) / size, heads = numel / rows / head_dim;
  const int64_t key_numel = trace.bytes(key) / size;
  const TracedTensor output = trace.tensor(trace.bytes(query), ResultKind::attention, 0);
  const TracedTensor log_sum_exp = trace.tensor(4 * rows * heads, ResultKind::attention, 0);
  TracedOperation operation{.name = "attention",
                            .inputs = {query, key, value},
                            .results = {output, log_sum_exp},
                            .saved = {query, key, value, output, log_sum_exp}};
  if (shape.context_ranks > 1) {
    add_ring(trace, operation, numel, 2 * key_numel);
  } else if (shape.on_gpu) {
    // FlashAttention's backward sums the queries' gradient in fp32, and computes keys' and values' per query head.
    operation.backward_scratch = 4 * numel + (key_numel < numel ? 2 * size * numel : 0);
  }
  // Two products of each query with the keys it sees, and five in backward, which computes the scores again.
  const double pairs =
      static_cast<double>(numel) * static_cast<double>(shape.length * shape.context_ranks) * shape.causal_share;
  const double moved = static_cast<double>(2 * trace.bytes(query) + 2 * trace.bytes(key));
  operation.forward = {{.kind = WorkKind::attention, .operations = 4 * pairs, .bytes = moved}};
  operation.backward = {{.kind = WorkKind::attention, .operations = 10 * pairs, .bytes = 2 * moved}};
  if (shape.context_ranks > 1) {
    add_merges(shape, operation, static_cast<double>(numel), static_cast<double>(2 * key_numel));
  }
  trace.add(std::move(operation));
  return output;
}

TracedTensor trace_swiglu(UnitTrace& trace, TracedTensor gate, TracedTensor up) {
  const auto bytes = static_cast<double>(trace.bytes(gate));
  const bool plain = trace.shape().on_gpu && !trace.shape().fused_kernels;
  const TracedTensor result = trace.tensor(trace.bytes(gate), ResultKind::activation, 0);
  trace.add({.name = "swiglu",
             .inputs = {gate, up},
             .results = {result},
             .saved = {gate, up},
             .backward_scratch = plain ? trace.bytes(gate) : 0,
             .forward = {{.bytes = (plain ? 5 : 3) * bytes}},
             .backward = {{.bytes = (plain ? 11 : 5) * bytes}}});
  return result;
}

TracedTensor trace_bias(UnitTrace& trace, TracedTensor x) {
  const TracedTensor sum = trace.in_place_of(x);
  const auto bytes = static_cast<double>(trace.bytes(x));
  trace.add({.name = "bias",
             .inputs = {x},
             .results = {sum},
             .passes_gradient = true,
             .forward = {{.bytes = 2 * bytes}},
             .backward = {{.bytes = bytes}}});
  return sum;
}

TracedTensor trace_embedding(UnitTrace& trace, int64_t width, bool trained) {
  const TraceShape& shape = trace.shape();
  const int64_t ids = 8 * shape.tokens(), all = shape.tokens() * width * shape.element_size;
  const bool shares = shape.tensor_ranks > 1;
  const TracedTensor rows = trace.tensor(all / shape.tensor_ranks);
  TracedOperation operation{.name = "embedding", .results = {rows}, .saved = {trace.tensor(ids)}};
  operation.forward_scratch = shares ? all + 2 * ids : 0;
  operation.backward_scratch = shares && trained ? all : 0;
  operation.forward = {{.bytes = 2.0 * static_cast<double>(all)}};
  if (trained) operation.backward = {{.bytes = static_cast<double>(all + 8 * shape.tokens() * width)}};
  if (shares) {
    operation.forward_messages = {
        {communicator_names::kTensor, Collective::reduce_scatter, {1, all}, shape.async_tensor_parallel}};
  }
  if (shares && trained) {
    operation.backward_messages = {
        {communicator_names::kTensor, Collective::all_gather, {1, all}, shape.async_tensor_parallel}};
  }
  trace.add(std::move(operation));
  return rows;
}

namespace {

/// Bytes of one chunk's logits at the peak, while its losses are computed.
int64_t logits_bytes(const TraceShape& shape, int64_t rows, int64_t vocabulary, int64_t local_vocab) {
  constexpr int64_t kWide = 4;
  const int64_t size = shape.element_size;
  const bool shares = shape.tensor_ranks > 1;
  if (shares && shape.loss.parallel) {
    const int64_t widened = size == kWide ? kWide : size + kWide;
    return rows * local_vocab * (shape.loss.in_place ? size : widened);
  }
  // Gathered logits exist twice (shards and their concatenation); without fused kernels, fp32 log-probabilities are
  // added.
  const int64_t columns = vocabulary + (shares ? vocabulary + local_vocab : 0);
  return rows * std::max(size * columns, shape.loss.in_place ? 0 : 2 * kWide * vocabulary);
}

}  // namespace

void trace_cross_entropy(UnitTrace& trace, TracedTensor hidden, int64_t width, int64_t vocabulary, bool trained) {
  const TraceShape& shape = trace.shape();
  const int64_t tokens = shape.tokens(), size = shape.element_size, ranks = shape.tensor_ranks;
  const int64_t rows = (tokens + shape.loss.chunks - 1) / shape.loss.chunks;
  const int64_t chunks = (tokens + rows - 1) / rows;
  const int64_t local_vocab = (vocabulary + ranks - 1) / ranks;
  const int64_t all = tokens * width * size;
  TracedOperation operation{.name = "output and loss", .inputs = {hidden}, .passes_gradient = true};
  // Forward computes the gradient of the hidden states chunk by chunk, so it is saved, and the logits are not.
  operation.saved = {trace.tensor(trace.bytes(hidden))};
  operation.forward_scratch = (ranks > 1 ? all : 0) + logits_bytes(shape, rows, vocabulary, local_vocab);
  operation.training_scratch = ranks > 1 ? all : 0;
  const double products = 2.0 * static_cast<double>(tokens * width * local_vocab);
  const double logits = static_cast<double>(tokens * local_vocab);
  const TracedWork product{
      .kind = WorkKind::product,
      .operations = products,
      .bytes = static_cast<double>(chunks * size * (rows * (width + local_vocab) + width * local_vocab))};
  // Chunks add to one fp32 gradient: each writes it, and all but the first read it.
  constexpr double kWide = 4;
  const double weights = static_cast<double>(width * local_vocab), narrow = static_cast<double>(chunks * size);
  TracedWork weight_gradient = product;
  weight_gradient.wide_bytes = weights * (kWide * static_cast<double>(2 * chunks - 1) - narrow);
  weight_gradient.bytes += weight_gradient.wide_bytes;
  const double moved = shape.loss.in_place ? 2.0 * static_cast<double>(size) : 2.0 * static_cast<double>(size) + 32;
  operation.forward = {product, {.bytes = moved * logits}, product};
  if (trained) operation.forward.push_back(weight_gradient);
  if (ranks > 1) {
    using communicator_names::kTensor;
    const bool peer = shape.async_tensor_parallel;
    operation.forward_messages = {{kTensor, Collective::all_gather, {1, all}, peer}};
    if (shape.loss.parallel) {
      operation.forward_messages.push_back({kTensor, Collective::all_reduce, {2 * chunks, 3 * tokens * 4}});
    } else {
      operation.forward_messages.push_back(
          {kTensor, Collective::all_gather, {chunks, tokens * local_vocab * ranks * size}});
    }
    operation.forward_messages.push_back({kTensor, Collective::reduce_scatter, {1, all}, peer});
  }
  trace.add(std::move(operation));
}

}  // namespace titan
