// Selection of the fused kernels by compile.enable and compile.components (docs/kernels.md).
#pragma once

#include <string>
#include <string_view>

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/executor.h"
#include "titan/train/device.h"

namespace titan {

/// Whether code built for `architectures` ("80-real,90a-real", as in CMake) runs on a GPU of `capability` (10 · major +
/// minor). Machine code runs on its own major version from its minor version on; with an `a`, on that exact version
/// only. Entries without `-real` also contain PTX, which the driver compiles for anything newer. Source: NVIDIA, "CUDA
/// C++ Programming Guide", Binary Compatibility and PTX Compatibility.
bool runs_on(std::string_view architectures, int capability);

/// Architectures of the kernels in libtitan_cuda.so, as in CMake; empty if it is not loaded.
std::string_view built_architectures();

/// Throws Error(bad_config) for a GPU that kernels built for `architectures` do not run on: initial weights, the
/// gradient norm and the optimizer need them whatever compile.enable is.
void require_kernels(const DeviceInfo& device, std::string_view architectures = built_architectures());

/// The kernels of a run on `device`; none if compile.enable is false, and none on a CPU, which is logged.
ExecutorOptions choose_kernels(const JobConfig& config, const DeviceInfo& device, const Log& log);

}  // namespace titan
