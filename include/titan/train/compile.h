// Selection of the fused kernels by compile.enable and compile.components (docs/kernels.md).
#pragma once

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/executor.h"
#include "titan/train/device.h"

namespace titan {

/// The kernels of a run on `device`; none if compile.enable is false, and none on a CPU, which is logged.
ExecutorOptions choose_kernels(const JobConfig& config, const DeviceInfo& device, const Log& log);

}  // namespace titan
