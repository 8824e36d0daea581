#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mock_cuda {

int device_count();
/// Of its memory.
size_t device_bytes(int device);
/// What each communicator takes of its device: MOCK_CUDA_COMMUNICATOR_MIB (0).
size_t communicator_bytes();
/// Of this thread.
int current_device();
/// Notes the device of a call that makes CUDA set it up where it is not, with the thread's name: the first such call of
/// the thread, and the first one after the thread has chosen another device.
void touch(const char* call);
/// Whether this call, which asks for memory, finds none: MOCK_CUDA_NO_MEMORY names it, and from which time on.
bool lacks_memory(const char* call);

}  // namespace mock_cuda
