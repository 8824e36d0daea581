// Queries and keys that are matrices of their own; in a model they are columns of one matrix.
#pragma once

#include "titan/kernels/rotary.h"

namespace titan {

/// Tokens whose heads are all adjacent.
inline void set_dense_strides(RotaryTurn& a) {
  a.query_stride = a.turned_query_stride = a.query_heads * a.head_dim;
  a.key_stride = a.turned_key_stride = a.key_heads * a.head_dim;
}

}  // namespace titan
