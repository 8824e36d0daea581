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

AttentionShape attention_shape(const Run& run, const Plan& plan) {
  const int64_t ranks = run.place.mesh.size(MeshAxis::tp);
  const ModelDescription& model = run.model.description;
  return {plan.request.samples, plan.request.sequence_length / plan.request.split().ranks, model.heads / ranks,
          model.kv_heads / ranks, model.head_dim};
}

/// What only a trial on the device shows; device_problems reports the rest. An error of the device is thrown: no other
/// kernel can take its place.
KernelTiming trial_of(AttentionKernel kernel, const Run& run, const Plan& plan, at::ScalarType type) {
  KernelTiming timing = time_kernel(kernel, [&](AttentionKernel each) {
    return measure_kernel(each, attention_shape(run, plan), type, run.device.device);
  });
  if (timing.device_error) std::rethrow_exception(timing.device_error);
  return timing;
}

[[noreturn]] void refuse_shape(const AttentionShape& shape, const std::string& kernels, const std::string& refusal) {
  throw Error(
      ExitCode::bad_config,
      fmt::format("{} takes [{}, {}, {}, {}] with {} heads of keys: {}; training.device = \"cpu\" takes any size "
                  "of head",
                  kernels, shape.samples, shape.length, shape.heads, shape.head_dim, shape.kv_heads, refusal));
}

/// `kernel`, the only one that serves, for `reason`. Throws Error if it does not take the shape of the job.
AttentionKernel only_kernel(AttentionKernel kernel, const std::string& reason, const Run& run, const Plan& plan,
                            at::ScalarType type) {
  const KernelTiming timing = trial_of(kernel, run, plan, type);
  if (!timing.refusal.empty()) {
    const std::string words = fmt::format("attention needs the {} kernel ({}), which never", name(kernel), reason);
    refuse_shape(attention_shape(run, plan), words, timing.refusal);
  }
  return kernel;
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
  const KernelTiming timing = trial_of(kernel, run, plan, type);
  if (!timing.refusal.empty()) {
    throw Error(ExitCode::bad_config,
                fmt::format("debug.attention_kernel = \"{}\" cannot be used: {}; leave it at \"{}\"", asked,
                            timing.refusal, kAutomatic));
  }
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
  if (use.on_cpu) return AttentionKernel::cudnn;
  if (!use.in_bf16) {
    only_kernel(AttentionKernel::efficient, "fp32", run, plan, at::kFloat);
    return AttentionKernel::cudnn;  // a preference, for bf16 (kernel_for)
  }
  if (const std::string obstacle = attention_obstacle("cudnn", use); !obstacle.empty()) {
    run.log.info("Attention by {}: {}", name(AttentionKernel::flash), obstacle);
    return only_kernel(AttentionKernel::flash, obstacle, run, plan, at::kBFloat16);
  }
  const AttentionShape shape = attention_shape(run, plan);
  const std::vector<KernelTiming> timings = time_kernels(
      [&](AttentionKernel kernel) { return measure_kernel(kernel, shape, at::kBFloat16, run.device.device); });
  wait_for_device(run.device.device);  // throws if it was not a kernel that failed, but the device
  const std::optional<AttentionKernel> chosen = choose_kernel(timings);
  if (!chosen) refuse_shape(shape, "no attention kernel of this GPU", timings.front().refusal);
  run.log.info(describe_choice(*chosen, timings));
  return agreed_kernel(run, *chosen);
}

}  // namespace titan
