#include "titan/train/compile.h"

#include <algorithm>

namespace titan {
namespace {

bool has(const std::vector<std::string>& components, const char* component) {
  return std::find(components.begin(), components.end(), component) != components.end();
}

#ifdef TITAN_WITH_CUDA
std::shared_ptr<const FusedKernels> gpu_kernels_that_say(const Log& log) {
  return std::make_shared<FusedKernels>(gpu_kernels(), at::kCUDA, [&log](const std::string& what) { log.info(what); });
}
#endif

}  // namespace

ExecutorOptions choose_kernels(const JobConfig& config, const at::Device& device, const Log& log) {
  ExecutorOptions options;
  if (!config.compile.enable) return options;
  if (device.is_cpu()) {
    log.shared_warning(
        "compile.enable = true changes nothing on a CPU: the fused kernels are for GPUs, and plain operations have "
        "loops "
        "of their own there");
    return options;
  }
#ifdef TITAN_WITH_CUDA
  const std::shared_ptr<const FusedKernels> kernels = gpu_kernels_that_say(log);
  if (has(config.compile.components, "model")) options.kernels = kernels;
  if (has(config.compile.components, "loss")) options.loss_kernels = kernels;
  log.info("Fused kernels for {}", fmt::join(config.compile.components, " and "));
#else
  (void)has;
#endif
  return options;
}

}  // namespace titan
