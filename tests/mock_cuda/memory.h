// Memory of the mock GPU: addresses that the host may touch, whose pages exist only once something does. So an 8B model
// fits on a machine with less memory than it, as long as nothing is copied.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace mock_cuda {

enum class Kind { device, pinned, pageable };
Kind kind_of(const void* address);

/// With MOCK_CUDA_HOLLOW set nothing is written to the device: a model of any size needs no memory of the host, and all
/// that comes back is zero.
bool hollow();

/// Takes from and gives back to the device's memory; false when there is not as much left.
bool take(int device, size_t bytes);
void give(int device, size_t bytes);
void* reserve_addresses(size_t bytes, bool usable);

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool blocking);
cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t stream, bool blocking);

}  // namespace mock_cuda
