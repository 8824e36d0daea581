// A GPU as a machine for kernels: device memory with guard bytes, of which the host sees a copy made when it asks.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "support/kernel_machine.h"

namespace titan {
namespace {

constexpr size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xa5;

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class GpuMemory : public MachineMemory {
 public:
  GpuMemory(size_t bytes, const uint64_t& launches) : bytes_(bytes), launches_(launches) {
    check(cudaMalloc(&block_, bytes + 2 * kGuard), "cudaMalloc");
    check(cudaMemset(block_, kGuardByte, bytes + 2 * kGuard), "cudaMemset");
    check(cudaMemset(data(), 0xff, bytes), "cudaMemset");
  }
  ~GpuMemory() override { (void)cudaFree(block_); }

  unsigned char* data() override { return block_ + kGuard; }
  void write(const void* from, size_t bytes) override {
    check(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    seen_.clear();
  }
  const unsigned char* read() const override { return seen().data() + kGuard; }
  bool guards_intact() const override {
    const std::vector<unsigned char>& all = seen();
    const auto intact = [](unsigned char byte) { return byte == kGuardByte; };
    return std::all_of(all.begin(), all.begin() + kGuard, intact) && std::all_of(all.end() - kGuard, all.end(), intact);
  }

 private:
  const std::vector<unsigned char>& seen() const {
    if (seen_.empty() || seen_at_ != launches_) {
      seen_.resize(bytes_ + 2 * kGuard);
      check(cudaMemcpy(seen_.data(), block_, seen_.size(), cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
      seen_at_ = launches_;
    }
    return seen_;
  }

  size_t bytes_;
  const uint64_t& launches_;  // of the machine, which outlives its memory
  unsigned char* block_ = nullptr;
  mutable std::vector<unsigned char> seen_;
  mutable uint64_t seen_at_ = 0;
};

class GpuMachine : public KernelMachine {
 public:
  explicit GpuMachine(std::string name) : name_(std::move(name)) {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~GpuMachine() override {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }

  std::string name() const override { return name_; }
  std::unique_ptr<MachineMemory> memory(size_t bytes) override { return std::make_unique<GpuMemory>(bytes, launches_); }
  const Kernels& kernels() const override { return gpu_kernels(); }
  std::string traffic_difference(const KernelTraffic&) const override { return {}; }

  void copy(MachineMemory& to, MachineMemory& from, size_t bytes) override {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
  }
  double seconds_of(const std::function<void()>& work) override {
    check(cudaEventRecord(begin_, nullptr), "cudaEventRecord");
    work();
    check(cudaEventRecord(end_, nullptr), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    ++launches_;
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  void before_launch() override {}
  void after_launch() override {
    ++launches_;
    check(cudaDeviceSynchronize(), "the kernel");
  }

  std::string name_;
  uint64_t launches_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

FoundGpu find_gpu_machine() {
  int count = 0;
  cudaDeviceProp properties;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count == 0) status = cudaErrorNoDevice;
  if (status == cudaSuccess) status = cudaSetDevice(0);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, 0);
  if (status != cudaSuccess) return {nullptr, std::string("CUDA says \"") + cudaGetErrorString(status) + "\""};
  return {std::make_unique<GpuMachine>(properties.name), {}};
}

}  // namespace titan
