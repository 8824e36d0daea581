// Widening of ids: from .bin files (2 bytes) to chunks (4 bytes) to model inputs (8 bytes). These loops are most of the
// work of loading pre-tokenized data.
#pragma once

#include <cstdint>

namespace titan {

/// to[i] = from[i] for i < count.
void widen(const uint16_t* from, int64_t count, int32_t* to);

/// A row of a batch: tokens[i] = ids[i] and labels[i] = ids[i + 1] for i < count; `ids` holds count + 1.
void widen_row(const int32_t* ids, int64_t count, int64_t* tokens, int64_t* labels);

}  // namespace titan
