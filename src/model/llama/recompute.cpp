// What each recompute selection keeps of a Llama block, and its memory cost.
#include <fmt/format.h>

#include <algorithm>

#include "titan/model/llama/llama.h"

namespace titan {
namespace {

constexpr int kQuery = 0, kKey = 1, kValue = 2, kAttentionOutput = 3, kGate = 4, kUp = 5, kDown = 6;

/// torchtitan's selective policy (torchtitan.md §3.4) keeps attention and every second product in forward order. With
/// several tensor-parallel ranks it also keeps wo's reduce-scattered output, so the replay does not communicate it
/// again. The replay does not need the value of the block's last product.
RecomputePolicy selective_operations(int64_t tensor_ranks) {
  RecomputePolicy policy = RecomputePolicy::full();
  if (tensor_ranks > 1) policy.set(ResultKind::linear, kAttentionOutput, Keep::keep);
  for (int product : {kQuery, kValue, kGate}) policy.set(ResultKind::linear, product, Keep::keep);
  policy.set(ResultKind::attention, 0, Keep::keep);
  policy.set(ResultKind::linear, kDown, Keep::placeholder);
  return policy;
}

/// Keeps everything except the named parts. An earlier result that only feeds a kept one is not needed.
RecomputePolicy selective_parts(const std::vector<std::string>& parts) {
  auto recomputes = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  RecomputePolicy policy = RecomputePolicy::full();
  if (!recomputes("norm")) policy.set(ResultKind::norm, 0, Keep::keep).set(ResultKind::norm, 1, Keep::keep);
  if (!recomputes("qkv")) {
    policy.set(ResultKind::linear, kQuery, Keep::placeholder).set(ResultKind::linear, kKey, Keep::placeholder);
    policy.set(ResultKind::rotary, 0, Keep::keep).set(ResultKind::linear, kValue, Keep::keep);
  }
  if (!recomputes("attention")) policy.set(ResultKind::attention, 0, Keep::keep);
  policy.set(ResultKind::linear, kAttentionOutput, Keep::placeholder).set(ResultKind::residual, 1, Keep::keep);
  if (!recomputes("ffn")) {
    policy.set(ResultKind::linear, kGate, Keep::keep).set(ResultKind::linear, kUp, Keep::keep);
  }
  if (!recomputes("ffn") && !recomputes("swiglu")) policy.set(ResultKind::activation, 0, Keep::keep);
  policy.set(ResultKind::linear, kDown, Keep::placeholder);
  return policy;
}

/// Bytes per element of the input that these layers share, where no other operation saves it.
int64_t input_size(const ActivationShape& shape, std::initializer_list<std::string_view> layers) {
  const bool narrow = std::all_of(layers.begin(), layers.end(), [&](std::string_view layer) {
    const std::string end = fmt::format(".{}.weight", layer);
    return std::any_of(shape.float8_parameters.begin(), shape.float8_parameters.end(),
                       [&](const std::string& name) { return name.ends_with(end); });
  });
  return narrow ? 1 : shape.element_size;
}

}  // namespace

RecomputePolicy llama_policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks) {
  switch (selection.mode) {
    case RecomputeSelection::Mode::none:
      return RecomputePolicy::none();
    case RecomputeSelection::Mode::full:
      return RecomputePolicy::full().set(ResultKind::linear, kDown, Keep::placeholder);
    case RecomputeSelection::Mode::selective_layers:
      if (selection.every != 0 && (block + 1) % selection.every != 0) return RecomputePolicy::none();
      return RecomputePolicy::full().set(ResultKind::linear, kDown, Keep::placeholder);
    case RecomputeSelection::Mode::selective_operations:
      return selective_operations(tensor_ranks);
    case RecomputeSelection::Mode::selective_parts:
      return selective_parts(selection.parts);
  }
  return RecomputePolicy::none();
}

// With tensor parallelism the stream (block input, norms, residuals) is sharded by tokens, heads and hidden features by
// ranks: each tensor is 1/ranks of its size in both cases.
int64_t llama_block_saved_bytes(const LlamaArguments& a, const ActivationShape& shape, const RecomputePolicy& policy) {
  const int64_t tokens = shape.tokens() / shape.tensor_ranks;
  const int64_t model = tokens * a.dim * shape.element_size;
  const int64_t key_value = tokens * a.kv_heads * a.head_dim() * shape.element_size;
  const int64_t hidden = tokens * a.hidden * shape.element_size;
  // Norm statistics (layer norms also keep a mean) and attention's log-sum-exp are fp32.
  const int64_t statistics = a.norm == NormType::rmsnorm || a.norm == NormType::fused_rmsnorm ? 1 : 2;
  const int64_t norm = model + 4 * tokens * statistics;
  const int64_t attention = model + 4 * tokens * a.heads;
  if (!policy.checkpointed()) {
    const int64_t inputs = tokens * a.dim * input_size(shape, {"attention.wq", "attention.wk", "attention.wv"}) +
                           tokens * a.dim * input_size(shape, {"feed_forward.w1", "feed_forward.w3"}) +
                           tokens * a.hidden * input_size(shape, {"feed_forward.w2"});
    return inputs + 3 * model + 2 * (norm - model) + 2 * key_value + attention + 2 * hidden;
  }
  auto kept = [&](ResultKind kind, int ordinal, int64_t bytes) {
    return policy.of(kind, ordinal) == Keep::keep ? bytes : 0;
  };
  int64_t total = model;  // the block's input
  total += kept(ResultKind::norm, 0, norm) + kept(ResultKind::norm, 1, norm);
  total += kept(ResultKind::linear, kQuery, model) + kept(ResultKind::linear, kKey, key_value);
  total += kept(ResultKind::linear, kValue, key_value) + kept(ResultKind::rotary, 0, model + key_value);
  total += kept(ResultKind::attention, 0, attention) + kept(ResultKind::linear, kAttentionOutput, model);
  total += kept(ResultKind::residual, 1, model);
  total += kept(ResultKind::linear, kGate, hidden) + kept(ResultKind::linear, kUp, hidden);
  total += kept(ResultKind::activation, 0, hidden);
  return total;
}

int64_t llama_head_saved_bytes(const LlamaArguments& a, const ActivationShape& shape) {
  const int64_t statistics = a.norm == NormType::rmsnorm || a.norm == NormType::fused_rmsnorm ? 1 : 2;
  // Its input, the norm's statistics, and the gradient of the normed stream that forward computes.
  const int64_t tokens = shape.tokens() / shape.tensor_ranks;
  return 2 * tokens * a.dim * shape.element_size + 4 * tokens * statistics;
}

StreamExchanges llama_block_exchanges(int64_t layer, const RecomputePolicy& policy) {
  auto group = [&](std::initializer_list<std::pair<int, const char*>> products, bool reads) {
    StreamGroup result;
    result.reads = reads;
    for (const auto& [ordinal, name] : products) {
      result.parameters.push_back(fmt::format("layers.{}.{}.weight", layer, name));
      result.replayed |= policy.checkpointed() && policy.of(ResultKind::linear, ordinal) == Keep::recompute;
    }
    return result;
  };
  return {0,
          0,
          {group({{kQuery, "attention.wq"}, {kKey, "attention.wk"}, {kValue, "attention.wv"}}, /*reads=*/true),
           group({{kAttentionOutput, "attention.wo"}}, /*reads=*/false),
           group({{kGate, "feed_forward.w1"}, {kUp, "feed_forward.w3"}}, /*reads=*/true),
           group({{kDown, "feed_forward.w2"}}, /*reads=*/false)}};
}

}  // namespace titan
