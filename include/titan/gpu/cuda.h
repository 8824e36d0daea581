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

/// CUDA's status on this machine.
struct CudaState {
  int error = 0;     ///< error code of counting the GPUs
  std::string says;  ///< CUDA's message for `error`
  int driver = 0;    ///< newest CUDA version that the driver supports, encoded as by CUDA (13020: 13.2); 0: no driver
  int runtime = 0;   ///< CUDA version of this program
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
  /// LibTorch's current stream of the calling thread.
  virtual CUstream_st* current_stream(int64_t gpu) const = 0;
  /// On: operations that make the calling thread wait for a GPU throw c10::Error from now on. Off: they do not.
  virtual void refuse_waits(bool on) const = 0;
  /// Records CUDA graphs.
  virtual std::unique_ptr<GraphCapture> recorder(int64_t gpu) const = 0;

  /// Makes NCCL groups for this process, whose GPU is `gpu`. Groups of equal members and queue get one NCCL
  /// communicator, hundreds of megabytes of the GPU each. Every call is
  /// added to `watch` (may be null), with the timeout as its limit.
  virtual std::function<std::unique_ptr<Communicator>(const GroupRequest&)> nccl(
      c10::intrusive_ptr<c10d::Store> store, int64_t gpu, std::shared_ptr<OverdueWatch> watch) const = 0;
  virtual std::string nccl_version() const = 0;
  /// Peer-accessible memory of the GPUs of one host; signals are enqueued on the current stream. Throws Error(launcher)
  /// when peer access is not available.
  virtual std::unique_ptr<PeerMemory> peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                                  int64_t rank, int64_t size, int64_t capacity,
                                                  std::chrono::milliseconds timeout, int64_t gpu) const = 0;
};

/// Opens libtitan_cuda.so if an NVIDIA driver is installed or `without_driver` is set; later calls return the same
/// library. Call it before any CUDA query of LibTorch, which caches that there is no CUDA. Null without a driver and in
/// a CPU build. Throws Error(bad_config) when the library is missing or cannot be loaded.
const Cuda* find_cuda(bool without_driver = false);

/// Null until find_cuda() has opened it.
const Cuda* opened_cuda();

/// The opened library, for code that holds a CUDA tensor or device. Throws InvariantError if it is not open.
const Cuda& cuda();

/// True if a GPU is usable.
bool has_gpu();

/// Where libtitan_cuda.so is in a build for CUDA: beside the program.
std::filesystem::path cuda_library_path();

}  // namespace titan
