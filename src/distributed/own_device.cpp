#include "titan/distributed/own_device.h"

#include "titan/gpu/cuda.h"

namespace titan {

int chosen_gpu() { return opened_cuda() ? cuda().chosen() : 0; }

void choose_gpu(int number) {
  if (number != chosen_gpu()) cuda().choose(number);
}

}  // namespace titan
