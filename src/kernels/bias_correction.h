// Bias corrections that only the device knows. Private to the Adam kernels.
#pragma once

#include "device.h"
#include "titan/kernels/adam.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {

/// `constants` with the two factors at `corrections` (AdamStep::corrections); unchanged if there are none.
__device__ __forceinline__ AdamConstants corrected(AdamConstants constants, const float* corrections) {
  if (!corrections) return constants;
  constants.step_size *= load_shared_word(corrections);
  constants.root_scale *= load_shared_word(corrections + 1);
  return constants;
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
