// What a validation holds: a batch of its own size goes through all units, and nothing is kept behind it.
#include <algorithm>

#include "plan_parts.h"

namespace titan {
namespace {

constexpr int64_t kWide = 4;  // bytes of a number in fp32

/// Beside queries, keys, values and the output of ring attention: keys and values of all ranks, or its own and those
/// that arrive; the sum in fp32; and where plain operations add a part to it, that part and what they make of it.
int64_t ring_bytes(const PlanRequest& request, const ModelDescription& model, const UnitPlan& unit) {
  const int64_t ranks = request.split().ranks;
  if (ranks == 1 || model.units[unit.chain_index].key_features == 0) return 0;
  const int64_t size = size_of(unit.compute);
  const int64_t copies = request.rotation == Rotation::all_gather ? ranks + 1 : 2;
  const int64_t outputs = request.tokens() * model.heads * model.head_dim / request.place.mesh.size(MeshAxis::tp);
  const int64_t part = size + (size == kWide ? 2 : 3) * kWide;  // it, wide, its difference to the sum, weighted
  return copies * size * key_value_numel(request, model.units[unit.chain_index]) + kWide * outputs +
         (request.on_gpu ? (part - size) * outputs : 0);
}

/// Of one chunk, while its losses are found.
int64_t logits_bytes(const PlanRequest& request, const ModelDescription& model, int64_t size) {
  const bool shared = request.place.mesh.size(MeshAxis::tp) > 1;
  const int64_t rows = chunk_rows(request);
  if (shared && request.loss_parallel) {
    const int64_t widened = size == kWide ? kWide : size + kWide;
    return rows * own_words(request, model) * (request.fused_loss ? size : widened);
  }
  // Those of all ranks are there beside the own as they came and as one matrix; plain operations make logarithms.
  const int64_t words = model.vocabulary + (shared ? model.vocabulary + own_words(request, model) : 0);
  return rows * std::max(size * words, request.fused_loss ? 0 : 2 * kWide * model.vocabulary);
}

int64_t forward_bytes(const UnitDescription& unit, const ActivationShape& shape) {
  return unit.forward_bytes ? unit.forward_bytes(shape) : unit.saved_bytes(shape, RecomputePolicy::none());
}

}  // namespace

PlanRequest validation_request(const PlanRequest& training) {
  PlanRequest request = training;
  request.samples = training.validation->samples;
  request.sequence_length = training.validation->sequence_length;
  return request;
}

int64_t validation_forward_bytes(const Plan& plan, const ModelDescription& model) {
  const PlanRequest request = validation_request(plan.request);
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages) {
    for (size_t u = stage.first; u < stage.last; ++u) {
      const UnitPlan& unit = plan.units[u];
      ActivationShape shape = activation_shape(request, unit.compute);
      shape.ring_bytes = ring_bytes(request, model, unit);
      int64_t bytes = forward_bytes(model.units[unit.chain_index], shape);
      if (unit.role == UnitRole::head) bytes += logits_bytes(request, model, size_of(unit.compute));
      most = std::max(most, bytes);
    }
  }
  constexpr int64_t kTokenAndLabel = 16;
  return most + kTokenAndLabel * request.tokens();
}

}  // namespace titan
