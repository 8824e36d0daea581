// Rotary embedding of queries and keys in one launch, optionally in place: pairs (2j, 2j+1) of a head are multiplied by
// a complex number of the table, or by its conjugate if inverse.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

struct RotaryTurn {
  KernelType type = KernelType::fp32;
  int64_t tokens = 0;    // samples · length
  int64_t length = 0;    // of a sample
  int64_t head_dim = 0;  // even
  int64_t query_heads = 0;
  int64_t key_heads = 0;
  const void* query = nullptr;   // [tokens, query_heads, head_dim]; null: none
  const void* key = nullptr;     // [tokens, key_heads, head_dim]; null: none
  void* turned_query = nullptr;  // may be `query` itself
  void* turned_key = nullptr;
  // Elements from a token to the next; multiples of head_dim. They are larger than a token's heads where query, key and
  // value are columns of one matrix.
  int64_t query_stride = 0;
  int64_t key_stride = 0;
  int64_t turned_query_stride = 0;
  int64_t turned_key_stride = 0;
  const float* table = nullptr;        // [positions, head_dim / 2] complex
  const int64_t* positions = nullptr;  // [samples or 1, length]; null: 0 … length − 1
  int64_t position_rows = 1;
  bool inverse = false;
  uint32_t* largest_query = nullptr;  // amax slot of turned_query, raised as fp32 bits; or null
  uint32_t* largest_key = nullptr;
};

inline bool supported(const RotaryTurn& a) {
  const auto whole = [&](int64_t stride) { return stride % a.head_dim == 0; };
  return a.head_dim % 2 == 0 && whole(a.query_stride) && whole(a.key_stride) && whole(a.turned_query_stride) &&
         whole(a.turned_key_stride);
}

/// Queries and keys are read and written once; a table row once per position, and reread for every further head and
/// sample (with per-sample positions: one row per sample, if all differ).
inline KernelTraffic traffic(const RotaryTurn& a) {
  const int64_t heads = (a.query ? a.query_heads : 0) + (a.key ? a.key_heads : 0);
  const int64_t numbers = a.tokens * heads * a.head_dim * bytes_of(a.type);
  const int64_t places = a.positions ? a.length * a.position_rows : a.length;
  const int64_t rows = places * a.head_dim * 4;
  const int64_t positions = a.positions ? places * 8 : 0;
  return {numbers + rows + positions, numbers, a.tokens * heads * a.head_dim * 4 - rows};
}

}  // namespace titan
