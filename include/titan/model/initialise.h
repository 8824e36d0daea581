// Initial weights as a pure function of (seed, parameter name, global index): every layout draws the same bits, and no
// seed checkpoint is needed to make it so.
#pragma once

#include <cstdint>
#include <span>

#include "titan/ops/parameter.h"

namespace titan {

/// The value of element `index` (row-major, of the whole logical tensor). Normal numbers are Box–Muller over Philox;
/// truncated ones are redrawn from the next counter block until they lie inside the bounds.
double initial_value(const Initialiser& initialiser, uint64_t seed, uint64_t name_key, int64_t index);

/// Fills the parameter's master shard (any dtype and device; made on the CPU). `box` is the part of the logical tensor
/// that the shard holds.
void initialise(Parameter& parameter, const Box& box, uint64_t seed);

}  // namespace titan
