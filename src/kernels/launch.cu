#include "titan/kernels/launch.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace titan {

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("kernel ") + kernel + ": " + cudaGetErrorString(status));
}

int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    check_launch("none: the number of multiprocessors");
  }
  return count;
}

}  // namespace titan
