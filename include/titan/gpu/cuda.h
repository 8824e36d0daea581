// The CUDA functions that titan uses besides LibTorch's operations. Their code (src/cuda and the kernels) is a shared
// object next to the program, libtitan_cuda.so, loaded only if a GPU may be used: LibTorch's CUDA libraries cost every
// process that loads them a fifth of a second and 350 MB. The program itself is therefore identical in a CPU build.
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
struct CommunicatorRequest;
struct Kernels;

/// CUDA's status on this machine.
struct CudaState {
  int error = 0;     ///< error code of the call that counts the GPUs
  std::string says;  ///< CUDA's message for `error`
  int driver = 0;    ///< newest CUDA version that the driver supports, encoded as by CUDA (13020: 13.2); 0: no driver
  int runtime = 0;   ///< CUDA version of this program
};

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
  std::string uuid;
  std::string pci_id;  ///< as in /sys/bus/pci/devices
  int capability = 0;  ///< 10 · major + minor
};

/// State of LibTorch's allocator: bytes, except for the last two, which are counts.
struct GpuMemory {
  int64_t reserved = 0;
  int64_t reserved_peak = 0;  ///< since the last reset
  int64_t active_peak = 0;    ///< of that, held by tensors
  int64_t retries = 0;        ///< so far
  int64_t out_of_memory = 0;  ///< so far
};

/// GPUs are indices among those visible to this process. A failed CUDA call throws c10::Error with CUDA's message.
class Cuda {
 public:
  virtual ~Cuda() = default;

  virtual CudaState state() const = 0;
  virtual int64_t count() const = 0;
  virtual GpuFacts facts(int64_t gpu) const = 0;
  /// The current GPU of the calling thread; 0 if it has set none.
  virtual int chosen() const = 0;
  virtual void choose(int64_t gpu) const = 0;
  /// Waits for all work that this process has enqueued on the current GPU.
  virtual void wait() const = 0;

  virtual GpuMemory memory(int64_t gpu) const = 0;
  virtual void reset_peaks(int64_t gpu) const = 0;
  /// Memory of a GPU in use by all processes.
  virtual int64_t taken_bytes(int64_t gpu) const = 0;
  /// Page-locked host memory; null if none is left.
  virtual void* allocate_pinned(size_t bytes) const = 0;
  virtual void free_pinned(void* block) const = 0;
  /// Makes LibTorch's allocator record its last `entries` actions; none: stops recording.
  virtual void record_history(std::optional<size_t> entries) const = 0;
  /// The recorded history, as LibTorch's pickle.
  virtual std::string history() const = 0;

  /// The architectures for which the kernels are compiled, in the syntax of CUDAARCHS.
  virtual std::string_view architectures() const = 0;
  virtual const Kernels& kernels() const = 0;
  /// LibTorch's current stream of the calling thread.
  virtual CUstream_st* current_stream(int64_t gpu) const = 0;
  /// If on, operations that make the calling thread wait for a GPU throw c10::Error.
  virtual void refuse_waits(bool on) const = 0;
  /// Records CUDA graphs.
  virtual std::unique_ptr<GraphCapture> recorder(int64_t gpu) const = 0;

  /// Makes NCCL communicators for this process, whose GPU is `gpu`. Communicators with equal members and queue share
  /// one NCCL communicator, which takes hundreds of megabytes of GPU memory. Every call is added to `watch` (may be
  /// null), with the timeout as its limit.
  virtual std::function<std::unique_ptr<Communicator>(const CommunicatorRequest&)> nccl(
      c10::intrusive_ptr<c10d::Store> store, int64_t gpu, std::shared_ptr<OverdueWatch> watch) const = 0;
  virtual std::string nccl_version() const = 0;
  /// Peer-accessible memory of the GPUs of one host; signals are enqueued on the current stream. Throws Error(launcher)
  /// when peer access is not available.
  virtual std::unique_ptr<PeerMemory> peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                                  int64_t rank, int64_t size, int64_t capacity,
                                                  std::chrono::milliseconds timeout, int64_t gpu) const = 0;
};

/// Opens libtitan_cuda.so if an NVIDIA driver is installed or `without_driver` is set; later calls return the same
/// library. Call it before any CUDA query of LibTorch, because LibTorch caches the answer that there is no CUDA.
/// Returns null without a driver and in a CPU build. Throws Error(bad_config) if the library is missing or cannot be
/// loaded.
const Cuda* find_cuda(bool without_driver = false);

/// Null before find_cuda() has opened it.
const Cuda* opened_cuda();

/// The opened library, for code that holds a CUDA tensor or device. Throws InvariantError if it is not open.
const Cuda& cuda();

/// True if a GPU is usable.
bool has_gpu();

/// The path of libtitan_cuda.so in a CUDA build: next to the program.
std::filesystem::path cuda_library_path();

}  // namespace titan
