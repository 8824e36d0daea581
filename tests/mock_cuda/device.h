#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mock_cuda {

int device_count();
/// Of its memory.
size_t device_bytes(int device);
/// Of this thread.
int current_device();
/// Whether this call, which asks for memory, finds none: MOCK_CUDA_NO_MEMORY names it, and from which time on.
bool lacks_memory(const char* call);

}  // namespace mock_cuda
