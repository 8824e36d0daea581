#include "titan/train/compile.h"

#include "titan/gpu/cuda.h"
#include "titan/job/job.h"

namespace titan {

ExecutorOptions choose_kernels(const JobConfig& config, const DeviceInfo& device, const Log& log) {
  ExecutorOptions options;
  if (!config.compile.enable) return options;
  if (device.device.is_cpu()) {
    log.shared_warning("compile.enable = true changes nothing on a CPU: fused kernels need a GPU");
    return options;
  }
  const auto kernels = std::make_shared<const FusedKernels>(cuda().kernels(), at::kCUDA,
                                                            [&log](const std::string& what) { log.info(what); });
  if (compiles(config, "model")) options.kernels = kernels;
  if (compiles(config, "loss")) options.loss_kernels = kernels;
  log.info("Fused kernels for {}", fmt::join(config.compile.components, " and "));
  return options;
}

}  // namespace titan
