// The device of a run: selection, memory, and asynchronous readback of a step's results.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/gpu/cuda.h"
#include "titan/job/device_problems.h"
#include "titan/train/step_runner.h"

namespace titan {

struct DeviceInfo {
  at::Device device{at::kCPU};
  std::string name;
  int64_t memory_bytes = 0;
  std::string uuid = {};    ///< of a GPU
  std::string pci_id = {};  ///< of a GPU, as /sys/bus/pci/devices names it
  int capability = 0;       ///< of a GPU: 10 · major + minor
};

/// Facts about a device for device_problems.
DeviceFacts device_facts(const DeviceInfo& device);
/// Facts about the device that choose_device would choose, without choosing it. For a local rank without a GPU nothing
/// is known.
DeviceFacts device_facts(const std::string& wanted, int64_t local_rank);

/// Why GPUs cannot be used although a driver is installed, and the remedy; empty without a driver or without a problem.
std::string gpu_obstacle(const CudaState& state);

/// `wanted`: auto, cpu or cuda, without device_problems. With several visible GPUs, uses the one of this rank's local
/// rank. Throws Error(launcher) if the local rank has no GPU.
DeviceInfo choose_device(const std::string& wanted, int64_t local_rank = 0);

/// The uuids of the GPUs that choose_device can choose, by index; empty if it would choose the CPU or throw.
std::vector<std::string> visible_gpus(const std::string& wanted);

/// Statistics of the device's allocator. The CPU has no such counters: both peaks are those of resident memory.
struct MemoryUse {
  int64_t reserved_peak = 0;  // since the last reset
  int64_t active_peak = 0;    // the largest part of the reserved memory that tensors held
  int64_t retries = 0;        // total
  int64_t out_of_memory = 0;  // total
};
MemoryUse memory_use(const at::Device& device);

/// GPU memory in use outside this process's allocator: by libraries and by other processes.
int64_t bytes_beside_allocator(const at::Device& device);

/// Memory available to the tensors of one rank.
struct MemoryRoom {
  std::optional<int64_t> bytes;  // none: unknown
  std::string words;             // the device's name, its memory, and how much of that is for this rank and why
};
/// The memory that one of `host_ranks` ranks of this host may use; call it before the job's first tensor. On a GPU this
/// is the GPU's memory, or an even share of it with `share_gpu`, minus the reserve for libraries. On a CPU it is an
/// even share of the available memory, within this process's limits.
MemoryRoom memory_room(const DeviceInfo& device, int64_t host_ranks, bool share_gpu);

/// Peak memory on the device since the last reset: allocator's reserved bytes on CUDA, resident memory on the CPU.
int64_t peak_memory_bytes(const at::Device& device);
void reset_peak_memory(const at::Device& device);

/// A step whose loss or gradient norm is far above those before it: by how many standard deviations each.
struct Spike {
  double loss_deviations = 0;
  double norm_deviations = 0;
};

/// Blocks the host until all work that this process enqueued on the device is complete. No effect on a CPU.
void wait_for_device(const at::Device& device);

/// Copies numbers to the device asynchronously: fp64, in order.
at::Tensor to_device_soon(std::initializer_list<double> values, const at::Device& device);

/// Values of one step on the host.
struct StepValues {
  double loss = 0;
  double grad_norm = 0;
  bool skipped = false;
  Requests requests = {};
  double own_loss = 0;  // contribution of this rank's tokens to the loss
  std::optional<Spike> spike = {};
  std::vector<double> statistics = {};  // those of Plan::statistics one after the other
};

/// Copies fp64 numbers to the host behind the work already enqueued; `wait` blocks for that copy only.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& values);  // of any shape
  /// Whether wait() would return at once.
  bool is_done() const { return !copied_ || copied_->query(); }
  std::span<const double> wait();
  /// The values of a copy that has completed.
  std::span<const double> values() const;

 private:
  at::Tensor host_;  // of the shape of the values; pinned when they come from a GPU
  std::optional<c10::Event> copied_;
};

/// A step's scalars.
class StepReadback {
 public:
  explicit StepReadback(const StepOutcome& outcome);
  bool is_done() const { return copy_.is_done(); }
  StepValues wait();

 private:
  HostCopy copy_;  // loss, norm, skip, own loss, requests, statistics, spike
  int64_t statistics_;
};

}  // namespace titan
