#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/ranges.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>

#include "parts.h"
#include "titan/kernels/kernels.h"

namespace titan {
namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

c10::DeviceIndex index_of(int64_t gpu) { return static_cast<c10::DeviceIndex>(gpu); }

Allocator& allocator() { return *c10::cuda::CUDACachingAllocator::get(); }

class CudaLibrary : public Cuda {
 public:
  CudaState state() const override {
    CudaState state;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    state.error = error;
    state.says = cudaGetErrorString(error);
    // The runtime keeps the error for the next call, which would fail for no reason of its own.
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&state.driver) != cudaSuccess) state.driver = 0;
    if (cudaRuntimeGetVersion(&state.runtime) != cudaSuccess) state.runtime = CUDART_VERSION;
    return state;
  }
  int64_t count() const override { return at::cuda::device_count(); }
  GpuFacts facts(int64_t gpu) const override {
    const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(index_of(gpu));
    const auto* uuid = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);
    return {properties.name, static_cast<int64_t>(properties.totalGlobalMem),
            fmt::format("{:02x}", fmt::join(uuid, uuid + sizeof properties.uuid.bytes, "")),
            fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID),
            10 * properties.major + properties.minor};
  }
  int chosen() const override {
    int gpu = 0;
    if (cudaGetDevice(&gpu) == cudaSuccess) return gpu;
    (void)cudaGetLastError();  // no driver or no GPU: as above
    return 0;
  }
  void choose(int64_t gpu) const override { at::cuda::set_device(index_of(gpu)); }
  void wait() const override { c10::cuda::device_synchronize(); }

  GpuMemory memory(int64_t gpu) const override {
    const auto stats = allocator().getDeviceStats(index_of(gpu));
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {stats.reserved_bytes[kAll].current, stats.reserved_bytes[kAll].peak, stats.active_bytes[kAll].peak,
            stats.num_alloc_retries, stats.num_ooms};
  }
  void reset_peaks(int64_t gpu) const override { allocator().resetPeakStats(index_of(gpu)); }
  int64_t taken_bytes(int64_t gpu) const override {
    const auto [left, all] = allocator().getMemoryInfo(index_of(gpu));
    return static_cast<int64_t>(all - left);
  }
  void* allocate_pinned(size_t bytes) const override {
    void* block = nullptr;
    const cudaError_t refused = cudaHostAlloc(&block, bytes, cudaHostAllocDefault);
    if (refused != cudaErrorMemoryAllocation) C10_CUDA_CHECK(refused);
    return block;
  }
  void free_pinned(void* block) const override { C10_CUDA_IGNORE_ERROR(cudaFreeHost(block)); }
  void record_history(std::optional<size_t> entries) const override {
    torch::cuda::_record_memory_history(entries ? std::optional<std::string>("all") : std::nullopt, std::nullopt, "all",
                                        entries.value_or(0));
  }
  std::string history() const override { return torch::cuda::_memory_snapshot_pickled(); }

  std::string_view architectures() const override { return TITAN_GPU_ARCHITECTURES; }
  const Kernels& kernels() const override { return gpu_kernels(); }
  CUstream_st* current_stream(int64_t gpu) const override {
    return at::cuda::getCurrentCUDAStream(index_of(gpu)).stream();
  }
  void refuse_waits(bool on) const override {
    using enum c10::cuda::SyncDebugMode;
    c10::cuda::warning_state().set_sync_debug_mode(on ? L_ERROR : L_DISABLED);
  }
  std::unique_ptr<GraphCapture> recorder(int64_t gpu) const override { return make_cuda_capture(gpu); }

  MakeCommunicator nccl(c10::intrusive_ptr<c10d::Store> store, int64_t gpu,
                        std::shared_ptr<OverdueWatch> watch) const override {
    return nccl_communicator_maker(std::move(store), gpu, std::move(watch));
  }
  std::string nccl_version() const override { return c10d::getNcclVersion(); }
  std::unique_ptr<PeerMemory> peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                          int64_t rank, int64_t size, int64_t capacity,
                                          std::chrono::milliseconds timeout, int64_t gpu) const override {
    return make_cuda_peer_memory(store, name, rank, size, capacity, timeout, gpu);
  }
};

}  // namespace
}  // namespace titan

extern "C" const titan::Cuda* titan_cuda() {
  static const titan::CudaLibrary library;
  return &library;
}
