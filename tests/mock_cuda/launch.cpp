// Kernels of the mock GPU: their names are kept as the program registers them, and a launch is counted and does
// nothing (but for one: optimizer.h). Variables on the device are memory of the host.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "ledger.h"
#include "optimizer.h"
#include "stream.h"

namespace mock_cuda {
namespace {

struct Kernel {
  std::string mangled;
  std::string name;  // demangled when it is first launched
};

struct Registered {
  std::mutex mutex;
  std::map<const void*, Kernel> kernels;
  std::map<const void*, std::vector<unsigned char>> variables;
};

Registered& registered() {
  static auto* it = new Registered;
  return *it;
}

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;

std::string demangled(const std::string& mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  return name;
}

cudaError_t launch(Kernel* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  if (!kernel) {
    Ledger::of_process().trouble("a launch of a kernel that was never registered");
    return set_error(cudaErrorInvalidDeviceFunction);
  }
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (kernel->name.empty()) kernel->name = demangled(kernel->mangled);
  const bool fits = threads >= 1 && threads <= 1024 && block.z <= 64 && blocks >= 1 && grid.x <= 2147483647U &&
                    grid.y <= 65535 && grid.z <= 65535 && shared <= (227U << 10);
  if (!fits) {
    Ledger::of_process().trouble("a launch that no GPU takes: " + kernel->name + ", grid " + std::to_string(grid.x) +
                                 " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z) + ", block " +
                                 std::to_string(block.x) + " x " + std::to_string(block.y) + " x " +
                                 std::to_string(block.z) + ", " + std::to_string(shared) + " bytes shared");
    return set_error(cudaErrorInvalidConfiguration);
  }
  Ledger::of_process().add(is_capturing(stream) ? "recorded" : "kernels", kernel->name,
                           static_cast<int64_t>(blocks * threads));
  enqueue(stream, {kernel->name, work_of(kernel->name, arguments)});
  return cudaSuccess;
}

Kernel* kernel_of(const void* function) {
  const std::lock_guard lock(registered().mutex);
  const auto found = registered().kernels.find(function);
  return found == registered().kernels.end() ? nullptr : &found->second;
}

}  // namespace
}  // namespace mock_cuda

using namespace mock_cuda;  // NOLINT: the rest of the file is CUDA's own interface

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard lock(registered().mutex);
  registered().kernels[function] = {name, {}};
}
void __cudaRegisterVar(void**, char* variable, char*, const char*, int, size_t bytes, int, int) {
  const std::lock_guard lock(registered().mutex);
  registered().variables[variable] = std::vector<unsigned char>(bytes);
}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(kernel_of(function));
  return *kernel ? cudaSuccess : set_error(cudaErrorInvalidDeviceFunction);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(reinterpret_cast<Kernel*>(kernel), grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(kernel_of(function), grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                          config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t shared,
                                                                   unsigned) {
  const auto fit = static_cast<int>(shared > 0 ? (227U << 10) / shared : 32);
  *blocks = std::min({32, 2048 / std::max(threads, 1), fit});
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
cudaError_t cudaGetSymbolAddress(void** address, const void* variable) {
  const std::lock_guard lock(registered().mutex);
  const auto found = registered().variables.find(variable);
  if (found == registered().variables.end()) return set_error(cudaErrorInvalidSymbol);
  *address = found->second.data();
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* variable, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  void* address = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&address, variable)) return error;
  std::memcpy(static_cast<char*>(address) + offset, from, bytes);
  return cudaSuccess;
}
}
