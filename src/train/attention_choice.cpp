#include "attention_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "titan/base/error.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/job/device_problems.h"

namespace titan {
namespace {

constexpr std::string_view kAutomatic = "auto";
constexpr std::array<std::pair<std::string_view, AttentionKernel>, 3> kKernelNames{{
    {"cudnn", AttentionKernel::cudnn},
    {"flash", AttentionKernel::flash},
    {"efficient", AttentionKernel::efficient},
}};

/// For what only a trial on the device shows; device_problems reports the rest.
[[noreturn]] void refuse_kernel(const std::string& asked, std::string_view reason) {
  throw Error(
      ExitCode::bad_config,
      fmt::format("debug.attention_kernel = \"{}\" cannot be used: {}; leave it at \"{}\"", asked, reason, kAutomatic));
}

AttentionShape attention_shape(const Run& run, const Plan& plan) {
  const int64_t ranks = run.place.mesh.size(MeshAxis::tp);
  const ModelDescription& model = run.model.description;
  return {plan.request.samples, plan.request.sequence_length / plan.request.split().ranks, model.heads / ranks,
          model.kv_heads / ranks, model.head_dim};
}

AttentionKernel asked_kernel(const Run& run, const Plan& plan, const AttentionUse& use) {
  const std::string& asked = run.config.debug.attention_kernel;
  const auto* const found =
      std::find_if(kKernelNames.begin(), kKernelNames.end(), [&](const auto& entry) { return entry.first == asked; });
  TITAN_CHECK(found != kKernelNames.end(), asked);
  const AttentionKernel kernel = found->second;
  const std::string obstacle = attention_obstacle(asked, use);  // device_problems has reported it
  TITAN_CHECK(obstacle.empty(), obstacle);
  const at::ScalarType type = use.in_bf16 ? at::kBFloat16 : at::kFloat;
  const KernelTiming timing = time_kernel(kernel, [&](AttentionKernel each) {
    return measure_kernel(each, attention_shape(run, plan), type, run.device.device);
  });
  if (!timing.refusal.empty()) refuse_kernel(asked, timing.refusal);
  run.log.info("Attention by {}, as debug.attention_kernel says: {:.2f} ms forward and backward", name(kernel),
               1e3 * timing.seconds);
  return kernel;
}

/// The choice of rank 0.
AttentionKernel agreed_kernel(const Run& run, AttentionKernel chosen) {
  if (!run.world.store || !run.world.is_distributed()) return chosen;
  const std::string key = "attention/kernel";
  if (run.world.rank == 0) run.world.store->set(key, std::to_string(static_cast<int>(chosen)));
  AttentionKernel agreed{};
  read_words(run.world.store->get_to_str(key), 0,
             [&](const nlohmann::json& said) { agreed = kKernelNames.at(said.get<size_t>()).second; });
  if (agreed != chosen) run.log.info("Attention by {}, as on rank 0", name(agreed));
  return agreed;
}

}  // namespace

AttentionKernel attention_kernel_for(const Run& run, const Plan& plan) {
  const AttentionUse use{run.device.device.is_cpu(),
                         plan.request.training.mixed_precision_param == ElementType::bfloat16,
                         run.model.description.block_causal, run.config.debug.deterministic};
  // A checkpoint that was trained on a GPU can be read on a CPU.
  if (run.trains && run.config.debug.attention_kernel != kAutomatic) return asked_kernel(run, plan, use);
  if (use.on_cpu || !use.in_bf16) return AttentionKernel::cudnn;
  if (const std::string obstacle = attention_obstacle("cudnn", use); !obstacle.empty()) {
    run.log.info("Attention by {}: {}", name(AttentionKernel::flash), obstacle);
    return AttentionKernel::flash;
  }
  const AttentionShape shape = attention_shape(run, plan);
  const std::vector<KernelTiming> timings = time_kernels(
      [&](AttentionKernel kernel) { return measure_kernel(kernel, shape, at::kBFloat16, run.device.device); });
  const std::optional<AttentionKernel> chosen = choose_kernel(timings);
  if (!chosen) {
    throw Error(ExitCode::bad_config,
                fmt::format("no attention kernel takes [{}, {}, {}, {}] with {} heads of keys: {}", shape.samples,
                            shape.length, shape.heads, shape.head_dim, shape.kv_heads, timings.front().refusal));
  }
  run.log.info(describe_choice(*chosen, timings));
  return agreed_kernel(run, *chosen);
}

}  // namespace titan
