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

}  // namespace titan
