#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mock_cuda {

int device_count();
/// Of one device.
size_t device_bytes();
/// Of this thread.
int current_device();

}  // namespace mock_cuda
