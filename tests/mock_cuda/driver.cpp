// The few calls of the driver that LibTorch makes by name: contexts, memory that is mapped piece by piece (expandable
// segments), descriptors of tensors for copies in hardware.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "device.h"
#include "ledger.h"
#include "memory.h"
#include "stream.h"

using namespace mock_cuda;  // NOLINT: the rest of the file is CUDA's own interface

namespace {

struct Piece {
  size_t bytes;
  int device;
  int file = -1;  // of memory that other processes may map
};

/// Which piece is where.
std::map<CUdeviceptr, Piece*>& mapped_pieces() {
  static auto* it = new std::map<CUdeviceptr, Piece*>;
  return *it;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = ::dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = ::dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*function) Ledger::of_process().add("unknown", std::string("driver call ") + name);
  return cudaSuccess;
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  cudaDriverGetVersion(version);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the mock GPU";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) { return cuGetErrorString(CUDA_SUCCESS, text); }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = device_count();
  return CUDA_SUCCESS;
}
// What scripts/gpu/card.py asks where there is no nvidia-smi.
CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(bytes), "%s", properties.name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = properties.totalGlobalMem;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) {
    *value = 0;
    return CUDA_SUCCESS;
  }
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 16);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) { return cuDevicePrimaryCtxRetain(context, current_device()); }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr) {
  std::memset(value, 0, attribute == CU_POINTER_ATTRIBUTE_CONTEXT ? sizeof(void*) : sizeof(unsigned));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = size_t{2} << 20;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = reinterpret_cast<CUdeviceptr>(reserve_addresses(bytes, false));
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* wanted,
                     unsigned long long) {
  if (!take(wanted->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* piece = new Piece{bytes, wanted->location.id};
  if (wanted->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    piece->file = ::memfd_create("mock_cuda", MFD_CLOEXEC);
    if (piece->file < 0 || ::ftruncate(piece->file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(piece);
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                                      unsigned long long) {
  const int file = ::dup(reinterpret_cast<Piece*>(handle)->file);
  std::memcpy(shared, &file, sizeof file);
  return file < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType) {
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(
      new Piece{0, 0, ::dup(static_cast<int>(reinterpret_cast<intptr_t>(shared)))});
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const auto* piece = reinterpret_cast<Piece*>(handle);
  if (piece->file >= 0) ::close(piece->file);
  give(piece->device, piece->bytes);
  delete piece;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  mapped_pieces()[address] = reinterpret_cast<Piece*>(handle);
  const int file = mapped_pieces()[address]->file;
  auto* begin = reinterpret_cast<void*>(address);
  if (file < 0) return ::mprotect(begin, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  void* mapped = ::mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  return mapped == begin ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const auto found = mapped_pieces().find(reinterpret_cast<CUdeviceptr>(address));
  if (found == mapped_pieces().end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Piece{0, 0, ::dup(found->second->file)});
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle) {
  std::memset(properties, 0, sizeof *properties);
  properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  auto* begin = reinterpret_cast<void*>(address);
  ::madvise(begin, bytes, MADV_DONTNEED);
  ::mprotect(begin, bytes, PROT_NONE);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  enqueue(reinterpret_cast<cudaStream_t>(stream), {"fill", [=] {
                                                     auto* words = reinterpret_cast<unsigned*>(address);
                                                     for (size_t i = 0; i < count; ++i) words[i] = value;
                                                   }});
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return cuMemsetD32Async(address, value, 1, stream);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t*, const cuuint64_t* strides, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  std::memset(map, 0, sizeof *map);
  bool aligned = reinterpret_cast<uintptr_t>(address) % 16 == 0;
  for (cuuint32_t i = 0; i + 1 < rank; ++i) aligned = aligned && strides[i] % 16 == 0;
  if (!aligned) Ledger::of_process().trouble("a tensor map of memory that is not aligned to 16 bytes");
  return aligned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}
