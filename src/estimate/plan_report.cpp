#include "titan/estimate/plan_report.h"

#include "titan/base/text.h"

namespace titan {
namespace {

std::string memory_row(const std::string& purpose, int64_t bytes) {
  return fmt::format("  {:<26} {:>12}", purpose, human_bytes(static_cast<double>(bytes)));
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
  const bool device_only = plan.request.on_gpu;  // on a CPU what is "on the host" takes the same memory
  add_sums("together", plan.training_bytes(), plan.training_bytes(/*device_only=*/true));
  if (plan.validation_bytes(device_only) <= plan.training_bytes(device_only)) return lines;
  lines.push_back(memory_row(plan.validation_memory.back().name, plan.validation_memory.back().bytes));
  add_sums("together in validation", plan.validation_bytes(), plan.validation_bytes(/*device_only=*/true));
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
    const bool float8 = converts_any(plan.float8_layers) && recipe_of(*request.float8) == Float8Recipe::tensorwise;
    lines.push_back(fmt::format("Applied {}{}Tensor Parallelism to the model", float8 ? "Float8 " : "",
                                request.async_tensor_parallel() ? "Async " : ""));
  }
  if (request.split().ranks > 1) lines.push_back("Applied Context Parallelism to the model");
  if (request.shards() > 1) lines.push_back(fmt::format("Applied {} to the model", replicas > 1 ? "HSDP" : "FSDP"));
  if (request.shards() == 1 && replicas > 1) lines.push_back("Applied DDP to the model");
  if (request.training.enable_cpu_offload) lines.push_back("Applied CPU Offloading to the model");
  if (request.offload_activations) lines.push_back("Applied activation offloading to the recomputed blocks");
  if (request.offloads_optimizer()) lines.push_back("Applied optimizer offloading to the moments");
  for (const StagePlan& stage : request.pipeline ? plan.stages : std::vector<StagePlan>()) {
    lines.push_back(fmt::format("PP rank {} runs stage {} of {}: {} to {}", request.place.coordinate(MeshAxis::pp),
                                stage.number, request.pipeline->stage_count(), plan.units[stage.first].name,
                                plan.units[stage.last - 1].name));
  }
  for (const CommunicatorTraffic& communicator : plan.traffic) {
    for (size_t k = 0; k < kCollectives; ++k) {
      const Traffic& traffic = communicator.table[k];
      if (traffic.calls == 0) continue;
      const auto kind = static_cast<Collective>(k);
      lines.push_back(fmt::format("  {:<14} {:<14} {:>3} ranks {:>6} {} per step, {} of tensors; {} sends {}",
                                  communicator.communicator, name(kind), communicator.ranks, traffic.calls,
                                  traffic.calls == 1 ? "call" : "calls",
                                  human_bytes(static_cast<double>(traffic.bytes)),
                                  kind == Collective::permute ? "this rank" : "in a ring each rank",
                                  human_bytes(sent_bytes(kind, traffic, communicator.ranks))));
    }
  }
  return lines;
}

std::optional<std::string> precision_warning(const Plan& plan) {
  const std::optional<LinearFloat8Section>& float8 = plan.request.float8;
  return float8 ? idle_float8_words(*float8, plan.float8_layers) : std::nullopt;
}

std::vector<std::string> precision_lines(const Plan& plan) {
  const std::optional<LinearFloat8Section>& float8 = plan.request.float8;
  if (!float8) return {};
  std::vector<std::string> lines = float8_lines(*float8, plan.float8_layers);
  if (!converts_any(plan.float8_layers)) return lines;
  const bool travels = float8->enable_fsdp_float8_all_gather && plan.gathers_weights();
  lines.push_back(fmt::format("Swapped to Float8Linear layers with enable_fsdp_float8_all_gather={}", travels));
  if (float8->enable_fsdp_float8_all_gather && !travels) {
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

}  // namespace titan
