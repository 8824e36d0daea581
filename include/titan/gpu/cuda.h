// What titan asks of CUDA beyond LibTorch's operations. The code behind it (src/cuda and the kernels) is one shared
// object beside the program, libtitan_cuda.so, opened where a GPU may be used: LibTorch's CUDA libraries take a fifth
// of a second and 350 MB of every process that loads them. So the program itself is the same in a build for the CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct CUstream_st;
namespace c10d {
class Store;
}

namespace titan {

class Communicator;
class OverdueWatch;
class PeerMemory;
class GraphCapture;
struct GroupRequest;
struct Kernels;

/// What CUDA says of this machine's GPUs.
struct CudaState {
  int error = 0;     ///< of counting them
  std::string says;  ///< the error in CUDA's words
  int driver = 0;    ///< the newest CUDA that the driver knows, as CUDA writes versions (13020: 13.2); 0: no driver
  int runtime = 0;   ///< that of this program
};

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
  std::string uuid;
  std::string pci_id;  ///< as /sys/bus/pci/devices names it
  int capability = 0;  ///< 10 · major + minor
};

/// Of LibTorch's allocator, in bytes, but for the last two, which count.
struct GpuMemory {
  int64_t reserved = 0;
  int64_t reserved_peak = 0;  ///< since the last reset
  int64_t active_peak = 0;    ///< of that, held by tensors
  int64_t retries = 0;        ///< so far
  int64_t out_of_memory = 0;  ///< so far
};

/// GPUs by their index among those that this process sees. What fails at CUDA throws c10::Error in CUDA's words.
class Cuda {
 public:
  virtual ~Cuda() = default;

  virtual CudaState state() const = 0;
  virtual int64_t count() const = 0;
  virtual GpuFacts facts(int64_t gpu) const = 0;
  /// The GPU of the calling thread; 0 where it has chosen none.
  virtual int chosen() const = 0;
  virtual void choose(int64_t gpu) const = 0;
  /// Waits for all work that this process has given the chosen GPU.
  virtual void wait() const = 0;

  virtual GpuMemory memory(int64_t gpu) const = 0;
  virtual void reset_peaks(int64_t gpu) const = 0;
  /// What is taken of a GPU by all processes.
  virtual int64_t taken_bytes(int64_t gpu) const = 0;
  /// Page-locked memory of the host; null when there is no more.
  virtual void* allocate_pinned(size_t bytes) const = 0;
  virtual void free_pinned(void* block) const = 0;
  /// LibTorch's allocator notes its last so many actions; none: it stops.
  virtual void record_history(std::optional<size_t> entries) const = 0;
  /// What was noted, as LibTorch's pickle.
  virtual std::string history() const = 0;

  /// The architectures that the kernels are compiled for, as CUDAARCHS writes them.
  virtual std::string_view architectures() const = 0;
  virtual const Kernels& kernels() const = 0;
  /// The one that LibTorch enqueues the calling thread's operations to.
  virtual CUstream_st* current_stream(int64_t gpu) const = 0;
  /// From here on an operation that makes the calling thread wait for a GPU throws c10::Error, or no longer does.
  virtual void refuse_waits(bool on) const = 0;
  /// Records CUDA graphs.
  virtual std::unique_ptr<GraphCapture> recorder(int64_t gpu) const = 0;

  /// Makes NCCL groups for this process, whose GPU is `gpu`. Groups of equal members and queue get one NCCL
  /// communicator, hundreds of megabytes of the GPU each. `watch` (may be null) hears of every call that must end
  /// within the timeout.
  virtual std::function<std::unique_ptr<Communicator>(const GroupRequest&)> nccl(
      c10::intrusive_ptr<c10d::Store> store, int64_t gpu, std::shared_ptr<OverdueWatch> watch) const = 0;
  virtual std::string nccl_version() const = 0;
  /// Memory of GPUs of one host that reach each other's; signals are given and waited for on the current stream. Throws
  /// Error(launcher) when it cannot be had.
  virtual std::unique_ptr<PeerMemory> peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                                  int64_t rank, int64_t size, int64_t capacity,
                                                  std::chrono::milliseconds timeout, int64_t gpu) const = 0;
};

/// Opens libtitan_cuda.so where an NVIDIA driver is here, or without one if so told; the first call opens it, the
/// others find it. To be called before LibTorch is asked for CUDA, which remembers that there is none. Null where there
/// is no driver, and in a build for the CPU. Throws Error(bad_config) when it is missing or cannot be loaded.
const Cuda* find_cuda(bool without_driver = false);

/// Null until find_cuda() has opened it.
const Cuda* opened_cuda();

/// For whoever holds a CUDA tensor or device, which nobody has before it is opened: InvariantError then.
const Cuda& cuda();

/// Whether there is a GPU to use.
bool has_gpu();

/// Where libtitan_cuda.so is in a build for CUDA: beside the program.
std::filesystem::path cuda_library_path();

}  // namespace titan
