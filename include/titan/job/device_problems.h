// The checks of a job that need facts of the device and of the hosts. Who starts a run gathers them (device_facts in
// titan/train/device.h); `plan` knows those that the config and its hardware table state. What is not known is not
// judged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/problem.h"

namespace titan {

struct DeviceFacts {
  enum class Kind { cpu, gpu };
  std::optional<Kind> kind = {};           ///< none: unknown
  std::string obstacle = {};               ///< why the GPUs that are there cannot be used; empty: they can, or none is
  std::string name = {};                   ///< for messages
  int capability = 0;                      ///< of a GPU: 10 · major + minor; 0: unknown
  std::string architectures = {};          ///< that the program's kernels are built for, as in CMake; empty: unknown
  std::optional<int64_t> host_ranks = {};  ///< ranks on this host, one of several; none: one host, or unknown
  bool trains = true;                      ///< generation and evaluation ignore some options of training

  bool is(Kind wanted) const { return kind == wanted; }
};

/// What training.device says of the device by itself; nothing for "auto".
DeviceFacts stated_facts(const JobConfig& config);

/// Problems of kernels, float8, attention and debug.sync_check on this device, and of tensor parallelism across hosts.
std::vector<Problem> device_problems(const JobConfig& config, const Origins& origins, const DeviceFacts& facts);

/// What decides which attention kernels a run can use.
struct AttentionUse {
  bool on_cpu = false;
  bool in_bf16 = true;
  bool documents = false;  ///< document masks
  bool deterministic = false;
};
/// Why a run cannot use `kernel` (a value of debug.attention_kernel), before the kernel is tried; empty: nothing is
/// known against it.
std::string attention_obstacle(std::string_view kernel, const AttentionUse& use);

/// Whether code built for `architectures` ("80-real,90a-real", as in CMake) runs on a GPU of `capability` (10 · major +
/// minor). Machine code runs on its own major version from its minor version on; with an `a`, on that exact version
/// only. Entries without `-real` also contain PTX, which the driver compiles for anything newer. Source: NVIDIA, "CUDA
/// C++ Programming Guide", Binary Compatibility and PTX Compatibility.
bool runs_on(std::string_view architectures, int capability);

}  // namespace titan
