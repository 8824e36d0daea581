// What the mock GPU is: an H200 by its numbers. MOCK_CUDA_DEVICES says how many there are, MOCK_CUDA_MIB how much
// memory each has (several numbers by commas: the first, the second, …), MOCK_CUDA_CAPABILITY (90) of which generation,
// MOCK_CUDA_DRIVER (the runtime's) which CUDA the driver knows. MOCK_CUDA_NO_MEMORY=CALL:N: that call finds no memory
// from its Nth time on (cudaHostAlloc, cudaGraphInstantiate, ncclReduceScatter). MOCK_CUDA_FIRST (0): which GPU of the
// machine is number 0 of this process.
#include "device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "ledger.h"
#include "stream.h"

namespace mock_cuda {

namespace {

int64_t number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

int driver() { return static_cast<int>(number("MOCK_CUDA_DRIVER", CUDART_VERSION)); }

int on_machine(int device) { return device + static_cast<int>(number("MOCK_CUDA_FIRST", 0)); }

thread_local int current = 0;

}  // namespace

int device_count() { return static_cast<int>(number("MOCK_CUDA_DEVICES", 1)); }
size_t device_bytes(int device) {
  const char* text = std::getenv("MOCK_CUDA_MIB");
  if (!text) return size_t{143166} << 20;
  for (const char* comma = std::strchr(text, ','); comma && device > 0; comma = std::strchr(text, ',')) {
    text = comma + 1;
    --device;
  }
  return static_cast<size_t>(std::atoll(text)) << 20;
}
size_t communicator_bytes() { return static_cast<size_t>(number("MOCK_CUDA_COMMUNICATOR_MIB", 0)) << 20; }
int current_device() { return current; }

void touch(const char* call) {
  thread_local int touched = -1;
  if (touched == current) return;
  touched = current;
  char thread[16] = "";
  ::pthread_getname_np(::pthread_self(), thread, sizeof thread);
  Ledger::of_process().add("threads", "GPU " + std::to_string(current) + ": " + call + " of " + thread);
}

bool lacks_memory(const char* call) {
  static std::atomic<int> calls = 0;
  const char* text = std::getenv("MOCK_CUDA_NO_MEMORY");
  if (!text) return false;
  const char* from = std::strchr(text, ':');
  const std::string named(text, from ? static_cast<size_t>(from - text) : std::strlen(text));
  return named == call && ++calls >= (from ? std::atoi(from + 1) : 1);
}

}  // namespace mock_cuda

using namespace mock_cuda;  // NOLINT: the rest of the file is CUDA's own interface

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  if (driver() < CUDART_VERSION / 1000 * 1000) return set_error(cudaErrorInsufficientDriver);
  return *count > 0 ? cudaSuccess : set_error(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return set_error(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver();
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "cudaError of the mock"; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    default:
      break;
  }
  thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the mock GPU", static_cast<int>(error));
  return text;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return set_error(cudaErrorInvalidDevice);
  cudaDeviceProp& it = *properties;
  std::memset(&it, 0, sizeof it);
  std::snprintf(it.name, sizeof it.name, "NVIDIA H200 (mock)");
  std::memset(it.uuid.bytes, 0x11 + on_machine(device), sizeof it.uuid.bytes);
  it.totalGlobalMem = device_bytes(device);
  it.sharedMemPerBlock = 48 << 10;
  it.sharedMemPerBlockOptin = 227 << 10;
  it.sharedMemPerMultiprocessor = 228 << 10;
  it.reservedSharedMemPerBlock = 1 << 10;
  it.regsPerBlock = it.regsPerMultiprocessor = 65536;
  it.warpSize = 32;
  it.maxThreadsPerBlock = 1024;
  std::copy_n(std::initializer_list<int>{1024, 1024, 64}.begin(), 3, it.maxThreadsDim);
  std::copy_n(std::initializer_list<int>{2147483647, 65535, 65535}.begin(), 3, it.maxGridSize);
  it.totalConstMem = 64 << 10;
  const auto capability = static_cast<int>(number("MOCK_CUDA_CAPABILITY", 90));
  it.major = capability / 10;
  it.minor = capability % 10;
  it.multiProcessorCount = 132;
  it.maxThreadsPerMultiProcessor = 2048;
  it.maxBlocksPerMultiProcessor = 32;
  it.textureAlignment = 512;
  it.canMapHostMemory = it.concurrentKernels = it.unifiedAddressing = 1;
  it.streamPrioritiesSupported = it.cooperativeLaunch = it.hostRegisterSupported = it.memoryPoolsSupported = 1;
  it.ipcEventSupported = it.clusterLaunch = it.unifiedFunctionPointers = 1;
  it.asyncEngineCount = 3;
  it.memoryBusWidth = 6144;
  it.l2CacheSize = 60 << 20;
  it.pciBusID = on_machine(device) + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp it;
  if (const cudaError_t error = cudaGetDeviceProperties(&it, device)) return error;
  const std::pair<cudaDeviceAttr, int> values[] = {
      {cudaDevAttrMaxThreadsPerBlock, it.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, it.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, it.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, it.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, it.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, it.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, it.maxGridSize[2]},
      {cudaDevAttrWarpSize, it.warpSize},
      {cudaDevAttrMultiProcessorCount, it.multiProcessorCount},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(it.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(it.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(it.sharedMemPerMultiprocessor)},
      {cudaDevAttrReservedSharedMemoryPerBlock, static_cast<int>(it.reservedSharedMemPerBlock)},
      {cudaDevAttrMaxRegistersPerBlock, it.regsPerBlock},
      {cudaDevAttrMaxThreadsPerMultiProcessor, it.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, it.maxBlocksPerMultiProcessor},
      {cudaDevAttrComputeCapabilityMajor, it.major},
      {cudaDevAttrComputeCapabilityMinor, it.minor},
      {cudaDevAttrL2CacheSize, it.l2CacheSize},
      {cudaDevAttrPciBusId, it.pciBusID},
      {cudaDevAttrPciDeviceId, it.pciDeviceID},
      {cudaDevAttrPciDomainId, it.pciDomainID},
      {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMemoryClockRate, 3201000},
      {cudaDevAttrGlobalMemoryBusWidth, it.memoryBusWidth},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrClusterLaunch, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1},
      {cudaDevAttrIntegrated, 0},
      {cudaDevAttrPageableMemoryAccess, 0},
      {cudaDevAttrManagedMemory, 0},
      {cudaDevAttrComputeMode, 0},
      {cudaDevAttrKernelExecTimeout, 0},
  };
  const auto found =
      std::find_if(std::begin(values), std::end(values), [&](const auto& known) { return known.first == attribute; });
  *value = found == std::end(values) ? 0 : found->second;
  if (found == std::end(values)) {
    Ledger::of_process().add("unknown", "attribute " + std::to_string(static_cast<int>(attribute)));
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
}
