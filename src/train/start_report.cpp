#include "titan/train/start_report.h"

#include <algorithm>
#include <cmath>

#include "titan/base/text.h"
#include "titan/data/utf8.h"
#include "titan/train/job.h"
#include "titan/train/run.h"

namespace titan {
namespace {

constexpr int64_t kExcerptTokens = 32;
constexpr int64_t kSampleTokens = 256;
constexpr int kExcerptCharacters = 120;

std::string memory_row(const std::string& purpose, int64_t bytes) {
  return fmt::format("  {:<26} {:>12}", purpose, human_bytes(static_cast<double>(bytes)));
}

/// At most `most` tokens from the beginning of a batch.
std::vector<int32_t> shown_tokens(const StepBatch& batch, int64_t most) {
  const std::vector<int64_t>& tokens = batch.microbatches[0].tokens;
  const auto count = std::min<int64_t>(most, static_cast<int64_t>(tokens.size()));
  return {tokens.begin(), tokens.begin() + count};
}

/// Units that compute in fp32.
std::vector<std::string> wide_units(const Plan& plan) {
  std::vector<std::string> names;
  for (const UnitPlan& unit : plan.units) {
    if (unit.compute == ElementType::float32) names.push_back(unit.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> memory_table(const Plan& plan) {
  std::vector<std::string> lines;
  const auto add_sums = [&](const char* name, int64_t all, int64_t on_device) {
    lines.push_back(memory_row(name, all));
    if (on_device < all) lines.push_back(memory_row("of it on the host", all - on_device));
  };
  for (const MemoryPurpose& purpose : plan.memory) {
    if (purpose.bytes == 0) continue;
    lines.push_back(memory_row(purpose.name, purpose.bytes) + (purpose.on_host ? "  host" : ""));
  }
  const bool device_only = plan.request.on_gpu;  // a CPU's memory is the host's
  add_sums("together", plan.training_bytes(), plan.training_bytes(/*device_only=*/true));
  if (plan.validation_bytes(device_only) <= plan.training_bytes(device_only)) return lines;
  lines.push_back(memory_row(plan.validation_memory.back().name, plan.validation_memory.back().bytes));
  add_sums("together in validation", plan.validation_bytes(), plan.validation_bytes(/*device_only=*/true));
  return lines;
}

std::vector<std::string> parameter_group_table(std::span<const ParameterGroup> groups,
                                               std::span<Parameter* const> parameters) {
  std::vector<std::string> lines{"parameter groups:                          tensors    parameters   lr x   decay x"};
  for (const ParameterGroup& group : groups) {
    int64_t numel = 0;
    for (size_t index : group.members) numel += parameters[index]->spec().numel();
    lines.push_back(fmt::format("  {:<40} {:>7} {:>13}  {:>5g}  {:>7g}",
                                group.match.empty() ? "(all others)" : group.match, group.members.size(),
                                with_thousands(numel), group.lr_multiplier, group.weight_decay_multiplier));
  }
  return lines;
}

std::string mesh_line(const DeviceMesh& mesh) {
  std::vector<std::string> names, sizes;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) == 1) continue;
    names.push_back(fmt::format("'{}'", name(axis)));
    sizes.push_back(std::to_string(mesh.size(axis)));
  }
  return fmt::format("Building {}-D device mesh with [{}], [{}]", names.size(), join(names, ", "), join(sizes, ", "));
}

std::vector<std::string> parallelism_lines(const Plan& plan) {
  const PlanRequest& request = plan.request;
  std::vector<std::string> lines;
  const int64_t replicas = request.place.mesh.size(MeshAxis::dp_replicate);
  if (request.place.mesh.size(MeshAxis::tp) > 1) {
    const bool float8 = converts_any(plan.float8_layers) && request.float8->recipe == Float8Recipe::tensorwise;
    lines.push_back(fmt::format("Applied {}{}Tensor Parallelism to the model", float8 ? "Float8 " : "",
                                request.async_tensor_parallel ? "Async " : ""));
  }
  if (request.split().ranks > 1) lines.push_back("Applied Context Parallelism to the model");
  if (request.shards() > 1) lines.push_back(fmt::format("Applied {} to the model", replicas > 1 ? "HSDP" : "FSDP"));
  if (request.shards() == 1 && replicas > 1) lines.push_back("Applied DDP to the model");
  if (request.cpu_offload) lines.push_back("Applied CPU Offloading to the model");
  if (request.offload_activations) lines.push_back("Applied activation offloading to the recomputed blocks");
  if (request.offload_optimizer) lines.push_back("Applied optimizer offloading to the moments");
  for (const StagePlan& stage : request.pipeline ? plan.stages : std::vector<StagePlan>()) {
    lines.push_back(fmt::format("PP rank {} runs stage {} of {}: {} to {}", request.place.coordinate(MeshAxis::pp),
                                stage.number, request.pipeline->stage_count(), plan.units[stage.first].name,
                                plan.units[stage.last - 1].name));
  }
  for (const GroupTraffic& group : plan.traffic) {
    for (size_t k = 0; k < kCollectives; ++k) {
      const Traffic& traffic = group.table[k];
      if (traffic.calls == 0) continue;
      const auto kind = static_cast<Collective>(k);
      lines.push_back(fmt::format(
          "  {:<14} {:<14} {:>3} ranks {:>6} {} per step, {} of tensors; in a ring each rank sends {}", group.group,
          name(kind), group.ranks, traffic.calls, traffic.calls == 1 ? "call" : "calls",
          human_bytes(static_cast<double>(traffic.bytes)), human_bytes(sent_bytes(kind, traffic, group.ranks))));
    }
  }
  return lines;
}

std::optional<std::string> precision_warning(const Plan& plan) {
  const std::optional<Float8Request>& float8 = plan.request.float8;
  return float8 ? idle_float8_words(*float8, plan.float8_layers) : std::nullopt;
}

std::vector<std::string> precision_lines(const Plan& plan) {
  const std::optional<Float8Request>& float8 = plan.request.float8;
  if (!float8) return {};
  std::vector<std::string> lines = float8_lines(*float8, plan.float8_layers);
  if (!converts_any(plan.float8_layers)) return lines;
  const bool travels = float8->gathers && plan.gathers_weights();
  lines.push_back(fmt::format("Swapped to Float8Linear layers with enable_fsdp_float8_all_gather={}", travels));
  if (float8->gathers && !travels) {
    lines.emplace_back(
        "quantize.linear.float8.enable_fsdp_float8_all_gather has no effect here: no weights are gathered");
  }
  return lines;
}

std::vector<std::string> converted_lines(const Plan& plan) {
  std::vector<std::string> lines;
  for (const LinearChoice& choice : plan.float8_layers) {
    lines.push_back(fmt::format("  {}: {}({} -> {})", choice.layer, choice.converted ? "Float8Linear" : "Linear",
                                choice.inputs, choice.outputs));
  }
  return lines;
}

std::vector<std::string> offload_lines(const Plan& plan) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, int64_t to_device, int64_t to_host) {
    if (to_device + to_host == 0) return;
    lines.push_back(fmt::format("  {:<14} to the device {}, to the host {} a step", what,
                                human_bytes(static_cast<double>(to_device)),
                                human_bytes(static_cast<double>(to_host))));
  };
  add("weights", plan.to_device_bytes, plan.to_host_bytes);
  add("activations", plan.activation_offload_bytes, plan.activation_offload_bytes);
  add("moments", plan.optimizer_offload_bytes, plan.optimizer_offload_bytes);
  return lines;
}

std::optional<std::string> explain_first_loss(double loss, int64_t vocabulary, bool is_trained, bool is_fresh) {
  // Limits relative to ln V: trained models are below kKnowsNothing, even poor ones on other text; fresh weights, whose
  // logits are small, are between kTooLow and kTooHigh.
  constexpr double kKnowsNothing = 0.9, kTooLow = 0.7, kTooHigh = 1.5;
  const double nothing_known = std::log(static_cast<double>(vocabulary));
  const std::string shown =
      fmt::format("the first loss is {:.2f}; uniform predictions give ln V = {:.2f} (V = {} tokens)", loss,
                  nothing_known, with_thousands(vocabulary));
  if (!std::isfinite(loss)) return std::nullopt;
  if (is_trained && loss > kKnowsNothing * nothing_known) {
    return shown + ": the loaded weights or the tokenizer are probably wrong";
  }
  if (is_fresh && loss < kTooLow * nothing_known) {
    return shown + ": too low for new weights, unless the text is very uniform or leaks its labels";
  }
  if (is_fresh && loss > kTooHigh * nothing_known) {
    return shown + ": the initialisation is probably too wide for this model size";
  }
  return std::nullopt;
}

std::string excerpt(std::string text) {
  repair_utf8(text);
  std::string line;
  int characters = 0;
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    if (++characters > kExcerptCharacters) return line + "…";
    const std::string_view rest = std::string_view(text).substr(at);
    const char32_t character = first_code_point(rest);
    append_utf8(disturbs_a_line(character) ? U' ' : character, line);
  }
  return line;
}

std::string first_text(const StepBatch& batch, const Tokenizer& tokenizer) {
  std::string text = tokenizer.decode(shown_tokens(batch, kSampleTokens));
  repair_utf8(text);
  return text;
}

void report_start(const Run& run, const StepBatch& first) {
  const Plan& plan = run.model.plan();
  const PlanRequest& request = plan.request;
  const bool narrows = !plan.message_slots.empty();
  run.log.info("dtypes: parameters {}, compute {}, gradients float32{}, optimizer states {}", name(request.master),
               name(request.compute), narrows ? fmt::format(" (reduced in {})", name(request.reduce)) : "",
               name(request.optimizer_state));
  if (!request.keep_fp32.empty() && request.compute != ElementType::float32) {
    run.log.info("units in float32 throughout: {}", join(wide_units(plan), ", "));
  }
  run.log.info("memory by purpose (predicted):");
  for (const std::string& line : memory_table(plan)) run.log.info(line);
  if (run.model.parameter_groups.size() > 1) {
    for (const std::string& line : parameter_group_table(run.model.parameter_groups, run.model.parameters))
      run.log.info(line);
  }
  if (request.step_in_backward && run.config.training.max_norm > 0) {
    run.log.shared_warning(
        "optimizer.early_step_in_backward: weights are stepped before the whole norm is known; clipping is off");
  }
  const std::vector<int32_t> head = shown_tokens(first, kExcerptTokens);
  run.log.info("first {} tokens of the first batch: {}", head.size(), excerpt(run.data.tokenizer->decode(head)));
  const BatchPlan batch = make_batch_plan(run.config, run.place);
  run.log.info(
      "Trainer is initialized with local batch size {}, global batch size {}, gradient accumulation steps {}, "
      "sequence length {}, total steps {} (warmup {}); {} tokens per step",
      batch.local_batch, batch.global_batch(), batch.accumulation, batch.sequence_length, run.config.training.steps,
      run.model.schedule.warmup_steps, with_thousands(batch.global_batch() * batch.sequence_length));
}

}  // namespace titan
