#include "titan/kernels/kernels.h"

#include "launchers.h"

namespace titan {

#ifdef TITAN_CUDA_ON_HOST
const Kernels& host_kernels() {
#else
const Kernels& gpu_kernels() {
#endif
  static const Kernels table{run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             run,
                             exact_carry_slots,
                             exact_value_of_slots};
  return table;
}

}  // namespace titan
