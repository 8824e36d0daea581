#include "titan/kernels/kernels.h"

#include "launchers.h"

namespace titan {

const Kernels& gpu_kernels() {
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
