// What compile.enable and compile.components choose of the fused kernels (docs/kernels.md).
#pragma once

#include <string>
#include <string_view>

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/executor.h"
#include "titan/train/device.h"

namespace titan {

/// Whether code built for `architectures` ("80-real,90a-real", as CMake names them) runs on a GPU of `capability`
/// (10 · major + minor): machine code on its own major version from its minor one on, with an `a` on that very one;
/// what is not `-real` also holds PTX, which the driver translates for anything newer. Source: NVIDIA, "CUDA C++
/// Programming Guide", Binary Compatibility and PTX Compatibility.
bool runs_on(std::string_view architectures, int capability);

/// What the kernels of libtitan_cuda.so were built for, as CMake names it; empty where it is not open.
std::string_view built_architectures();

/// Throws Error(bad_config) for a GPU that kernels built for `architectures` do not run on: initial weights, the
/// gradient norm and the optimizer are such kernels whatever compile.enable says.
void require_kernels(const DeviceInfo& device, std::string_view architectures = built_architectures());

/// Whether compile.enable and compile.components ask for `component` ("model", "loss"); on a CPU that changes nothing.
bool compiles(const JobConfig& config, std::string_view component);

/// The kernels of a run on `device`; none when compile.enable is false, and none on a CPU, which is said.
ExecutorOptions choose_kernels(const JobConfig& config, const DeviceInfo& device, const Log& log);

}  // namespace titan
