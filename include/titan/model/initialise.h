// Initial weights as a pure function of (seed, parameter name, global index): every layout gets the same bits without a
// seed checkpoint.
#pragma once

#include <cstdint>
#include <span>

#include "titan/kernels/kernels.h"
#include "titan/ops/parameter.h"

namespace titan {

/// The value of element `index` (row-major in the whole logical tensor). Normal values are Box–Muller over Philox;
/// truncated ones are redrawn from the next counter block until they are within the bounds.
double initial_value(const Initialiser& initialiser, uint64_t seed, uint64_t name_key, int64_t index);

/// Fills the parameter's master shard (fp32 or bf16) on its device, with the same bits on CPU and GPU. `box`: the part
/// of the logical tensor in this shard. `kernels`: for the shard's device; null: the GPU's, or plain host code.
void initialise(Parameter& parameter, const Box& box, uint64_t seed, const Kernels* kernels = nullptr);

}  // namespace titan
