#include "titan/train/compile.h"

#include <algorithm>
#include <cstdlib>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/gpu/cuda.h"
#include "titan/job/job.h"

namespace titan {

bool runs_on(std::string_view architectures, int capability) {
  for (const std::string& architecture : split(architectures, ',')) {
    const int built_for = std::atoi(architecture.c_str());
    if (built_for == 0) return true;  // "all", "native": architectures unknown here
    const bool that_one_alone = architecture.find('a') < architecture.find('-');
    const bool has_ptx = architecture.find("-real") == std::string::npos;
    if (capability == built_for) return true;
    if (that_one_alone || capability < built_for) continue;
    if (has_ptx || capability / 10 == built_for / 10) return true;
  }
  return false;
}

std::string_view built_architectures() { return opened_cuda() ? cuda().architectures() : std::string_view(); }

void require_kernels(const DeviceInfo& device, std::string_view architectures) {
  if (device.device.is_cpu() || runs_on(architectures, device.capability)) return;
  throw Error(
      ExitCode::bad_config,
      fmt::format("the kernels of this program are built for {}, and {} has compute capability {}.{}; build it "
                  "with CUDAARCHS={}-real, or say training.device = \"cpu\"",
                  architectures, device.name, device.capability / 10, device.capability % 10, device.capability));
}

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
