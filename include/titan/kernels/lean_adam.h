// One Adam or AdamW step over a parameter whose weight or moments, or both, are kept in bf16 and rounded by chance; and
// that rounding alone. Raw pointers, sizes and a stream; no tensors. bf16 numbers are their 16 bits.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// As launch_adam; reads 10 and writes 6 bytes an element where everything is bf16. Element i has the chances of
/// place.index(i).
void launch_lean_adam(void* weight, const float* gradient, void* first, void* second, int64_t count, bool bf16_weight,
                      bool bf16_moments, const RoundingKey& key, const RoundingPlace& place,
                      const AdamConstants& constants, const float* clip, const float* skip, CUstream_st* stream);

/// values → target, with the chances that this number of an element has in launch_lean_adam. Nothing is written when
/// *skip is not 0.
void launch_round(const float* values, uint16_t* target, int64_t count, const RoundingKey& key,
                  const RoundingPlace& place, KeptNumber number, const float* skip, CUstream_st* stream);

}  // namespace titan
