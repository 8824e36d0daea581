// The device a run trains on: choosing it, its memory, and reading a step's results without stopping it.
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

/// Throws Error(bad_config) for a GPU that does not multiply float8 (before Ada and Hopper).
void require_float8(const DeviceInfo& device);

/// Why GPUs cannot be used although a driver is here, and what to do; empty without a driver and where nothing is
/// wrong.
std::string gpu_obstacle(const CudaState& state);

/// `wanted`: auto, cpu or cuda. With several GPUs in sight, the one of this rank's place on its host. Throws
/// Error(bad_config) when cuda is wanted and there is none, or when there is something to use but for an obstacle and
/// the CPU is not asked for; Error(launcher) when the place has no GPU.
DeviceInfo choose_device(const std::string& wanted, int64_t local_rank = 0);

/// The uuids of the GPUs that choose_device chooses from, by their index; empty where it would choose the CPU or throw.
std::vector<std::string> visible_gpus(const std::string& wanted);

/// What the device's allocator says of itself. On the CPU, which has no such counters, both peaks are those of resident
/// memory.
struct MemoryUse {
  int64_t reserved_peak = 0;  // since the last reset
  int64_t active_peak = 0;    // of that, held by tensors
  int64_t retries = 0;        // so far
  int64_t out_of_memory = 0;  // so far
};
MemoryUse memory_use(const at::Device& device);

/// What is set aside of a GPU for libraries: context, communicators, work spaces, fragments.
inline constexpr int64_t kLibraryBytes = int64_t{2} << 30;
/// What is taken of a GPU and not by this process's allocator: by libraries, and by other processes.
int64_t bytes_beside_allocator(const at::Device& device);

/// What tensors of one rank may take.
struct MemoryRoom {
  std::optional<int64_t> bytes;  // none: not known
  std::string words;             // the device's name, how much it has, and how much of that is for this rank and why
};
/// Of one of `host_ranks` ranks of this host, asked before the job made any tensor: a GPU, of which each has its own
/// or, with `share_gpu`, an even share, without what libraries take for themselves; on a CPU an even share of what is
/// available, and no more than this process's limits.
MemoryRoom memory_room(const DeviceInfo& device, int64_t host_ranks, bool share_gpu);

/// Peak memory on the device since the last reset: allocator's reserved bytes on CUDA, resident memory on the CPU.
int64_t peak_memory_bytes(const at::Device& device);
void reset_peak_memory(const at::Device& device);

/// A step whose loss or gradient norm is far above those before it: by how many standard deviations each.
struct Spike {
  double loss_deviations = 0;
  double norm_deviations = 0;
};

/// The host waits for all work that this process has given the device. Of a CPU there is none.
void wait_for_device(const at::Device& device);

/// Numbers for the device, which need not be waited for: fp64, in order.
at::Tensor to_device_soon(std::initializer_list<double> values, const at::Device& device);

/// Values of one step on the host.
struct StepValues {
  double loss = 0;
  double grad_norm = 0;
  bool skipped = false;
  Requests requests = {};
  double own_loss = 0;  // what this rank's tokens brought to the loss
  std::optional<Spike> spike = {};
};

/// Copies fp64 numbers to the host behind the work already enqueued; `wait` blocks for that copy only.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& values);
  /// Whether wait() would return at once.
  bool is_done() const { return !copied_ || copied_->query(); }
  std::span<const double> wait();
  /// Of a copy that has arrived.
  std::span<const double> values() const;

 private:
  at::Tensor host_;  // pinned when the numbers come from a GPU
  std::optional<c10::Event> copied_;
};

/// A step's scalars.
class StepReadback {
 public:
  explicit StepReadback(const StepOutcome& outcome);
  bool is_done() const { return copy_.is_done(); }
  StepValues wait();

 private:
  HostCopy copy_;  // loss, norm, skip, own loss, requests, spike
};

}  // namespace titan
