#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mock_cuda {

int device_count();
/// Of its memory.
size_t device_bytes(int device);
/// Of this thread.
int current_device();

}  // namespace mock_cuda
