// What compile.enable and compile.components choose of the fused kernels (docs/kernels.md).
#pragma once

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/executor.h"

namespace titan {

/// The kernels of a run on `device`; none when compile.enable is false, and none on a CPU, which is said.
ExecutorOptions choose_kernels(const JobConfig& config, const at::Device& device, const Log& log);

}  // namespace titan
