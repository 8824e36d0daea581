// The request of a small Llama and of its plan, without tensors; sizes are odd where the model lets them be.
#pragma once

#include <map>
#include <ostream>
#include <string>

#include "titan/plan/architecture.h"
#include "titan/plan/plan.h"

namespace titan {

/// Names a case in the reports of the tests, which the support matrix reads.
inline void PrintTo(ElementType type, std::ostream* out) { *out << name(type); }

/// Small, odd where the model lets it be, grouped-query unless `kv_heads` says otherwise.
inline ModelRequest small_request(const std::string& name = "llama3", int64_t kv_heads = 2) {
  ModelRequest request;
  request.model.name = name;
  request.model.flavor = name == "llama3_2" ? "1B" : name.starts_with("qwen") ? kCustomFlavor : "debugmodel";
  request.sequence_length = 13;
  request.model.override_sizes = {
      .dim = 24, .n_layers = 3, .n_heads = 4, .n_kv_heads = kv_heads, .multiple_of = 8, .vocab_size = 59};
  return request;
}

/// The plan of the default config, computed in fp32.
inline PlanRequest plain_plan() {
  PlanRequest request;
  request.training.mixed_precision_param = ElementType::float32;
  return request;
}

/// Two samples a microbatch, everything else as a plan begins.
inline PlanRequest small_plan() {
  PlanRequest request = plain_plan();
  request.samples = 2;
  return request;
}

inline void validate(PlanRequest& request, int64_t samples, int64_t length) {
  request.validation.enable = true;
  request.validation.local_batch_size = samples;
  request.validation.seq_len = length;
}

inline PlanRequest plan_in(ElementType compute, const RecomputeSelection& selection = {}) {
  PlanRequest request = small_plan();
  request.training.mixed_precision_param = compute;
  request.recompute = selection;
  return request;
}

/// Bytes by purpose.
inline std::map<std::string, int64_t> memory_of(const Plan& plan) {
  std::map<std::string, int64_t> result;
  for (const MemoryPurpose& purpose : plan.memory) result[purpose.name] = purpose.bytes;
  return result;
}

}  // namespace titan
