// What each recompute selection saves of a Llama block.
#include <algorithm>

#include "titan/plan/llama.h"

namespace titan {
namespace {

constexpr int kQuery = 0, kKey = 1, kValue = 2, kAttentionOutput = 3, kGate = 4, kUp = 5, kDown = 6;

/// torchtitan's selective policy (docs/activation_checkpointing.md) saves attention and every second product in forward
/// order. With several tensor-parallel ranks it also saves wo's reduce-scattered output, so that the replay does not
/// repeat the communication. The replay does not need the result of the block's last product.
RecomputePolicy selective_operations(int64_t tensor_ranks) {
  RecomputePolicy policy = RecomputePolicy::full();
  if (tensor_ranks > 1) policy.set(ResultKind::linear, kAttentionOutput, Keep::keep);
  for (int product : {kQuery, kValue, kGate}) policy.set(ResultKind::linear, product, Keep::keep);
  policy.set(ResultKind::attention, 0, Keep::keep);
  policy.set(ResultKind::linear, kDown, Keep::placeholder);
  return policy;
}

/// Saves everything except the named parts. An earlier result that is only used by a saved one is not needed, unless
/// backward reads it.
RecomputePolicy selective_parts(const std::vector<std::string>& parts, bool reads_products) {
  auto recomputes = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  RecomputePolicy policy = RecomputePolicy::full();
  if (!recomputes("norm")) policy.set(ResultKind::norm, 0, Keep::keep).set(ResultKind::norm, 1, Keep::keep);
  if (!recomputes("qkv")) {
    const Keep before_rotation = reads_products ? Keep::keep : Keep::placeholder;
    policy.set(ResultKind::linear, kQuery, before_rotation).set(ResultKind::linear, kKey, before_rotation);
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

}  // namespace

RecomputePolicy llama_policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks,
                             bool reads_products) {
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
      return selective_parts(selection.parts, reads_products);
  }
  return RecomputePolicy::none();
}

}  // namespace titan
