// Initial weights as a pure function of (seed, parameter name, global index): every layout draws the same bits, and no
// seed checkpoint is needed to make it so.
#pragma once

#include <cstdint>
#include <span>

#include "titan/kernels/kernels.h"
#include "titan/ops/parameter.h"

namespace titan {

/// The value of element `index` (row-major, of the whole logical tensor). Normal numbers are Box–Muller over Philox;
/// truncated ones are redrawn from the next counter block until they lie inside the bounds.
double initial_value(const Initialiser& initialiser, uint64_t seed, uint64_t name_key, int64_t index);

/// Fills the parameter's master shard, fp32 or bf16; on a GPU it is made there, to the same bits. `box` is the part of
/// the logical tensor that the shard holds. `kernels`: those of the memory it is in; null: the GPU's, or plain code.
void initialise(Parameter& parameter, const Box& box, uint64_t seed, const Kernels* kernels = nullptr);

}  // namespace titan
