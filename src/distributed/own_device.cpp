#include "titan/distributed/own_device.h"

#ifdef TITAN_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace titan {

#ifdef TITAN_WITH_CUDA
int chosen_gpu() {
  int number = 0;
  if (cudaGetDevice(&number) == cudaSuccess) return number;
  (void)cudaGetLastError();  // no driver, or no GPU; no later call's
  return 0;
}

void choose_gpu(int number) {
  if (number != chosen_gpu()) (void)cudaSetDevice(number);  // a failure is that of the calls that follow
}
#else
int chosen_gpu() { return 0; }
void choose_gpu(int) {}
#endif

}  // namespace titan
