// The device a run trains on: choosing it, its memory, and reading a step's results without stopping it.
// What the trainer asks of CUDA itself lies behind these functions, so nothing else in it differs between a CPU-only
// and a CUDA build.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>

#include "titan/optimize/gradient_norm.h"

namespace titan {

struct DeviceInfo {
  at::Device device{at::kCPU};
  std::string name;
  int64_t memory_bytes = 0;
};

/// `wanted`: auto, cpu or cuda. Throws Error(bad_config) when cuda is wanted and there is none.
DeviceInfo choose_device(const std::string& wanted);

/// Peak memory on the device since the last reset: allocator's reserved bytes on CUDA, resident memory on the CPU.
int64_t peak_memory_bytes(const at::Device& device);
void reset_peak_memory(const at::Device& device);

/// Values of one step on the host.
struct StepValues {
  double loss = 0;
  double grad_norm = 0;
  bool skipped = false;
};

/// Copies a step's scalars to the host behind the work already enqueued; `wait` blocks for that copy only.
class StepReadback {
 public:
  StepReadback(const at::Tensor& loss, const StepControl& control);
  StepValues wait();

 private:
  at::Tensor host_;  // fp64 {loss, norm, skip}; pinned when the device is a GPU
  std::optional<c10::Event> copied_;
};

}  // namespace titan
