// CPU attention over raw memory, tiled with an online softmax (Dao, "FlashAttention-2", 2023): the score matrix is
// never stored. Values are fp32 or bf16 in memory and fp32 in tiles. One block of queries against one block of keys,
// causal or full; several blocks of keys accumulate to the same result. Tasks write to disjoint memory and depend only
// on their inputs, so they may run on any thread in any order.
#pragma once

#include <cstdint>

#include "cpu_tiles.h"
#include "titan/kernels/cpu_values.h"

namespace titan {

/// Queries and keys of one tile: its scores are 16 KiB of fp32, which stay in L1 while they are exponentiated and used.
inline constexpr int64_t kAttentionTile = 64;

/// One block's part of a [B, T, H, d] tensor: value c of head h at position t is first[t·place_stride + h·head_stride +
/// c].
template <class T>
struct HeadRows {
  T* first = nullptr;
  int64_t place_stride = 0;
  int64_t head_stride = 0;

  T* row(int64_t head, int64_t place) const { return first + head * head_stride + place * place_stride; }
};

struct AttentionSizes {
  int64_t queries;
  int64_t keys;
  bool causal;  // query i sees keys 0 … i (as many keys as queries); otherwise every query sees every key
  int64_t query_heads;
  int64_t key_heads;  // divides query_heads: query head h reads key head h / (query_heads / key_heads)
  int64_t head_dim;

  /// The number of keys seen by any query before `last`.
  int64_t keys_before(int64_t last) const { return causal ? last : keys; }
};

/// All heads of one block: output = softmax(q·kᵀ/√d)·v over the keys seen, and the log-sum-exp of each row. `resumes`:
/// output and log-sum-exp already hold those of other keys (−∞: none) and are updated to cover all keys.
template <class T, class Output>
struct AttentionForward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value;
  HeadRows<Output> output;
  HeadRows<float> log_sum_exp;  // place_stride 1
  bool resumes = false;
};

/// The block's share of the gradients, given output and log-sum-exp over all keys that its queries see. `adds`:
/// accumulate instead of overwrite.
template <class T, class Gradient>
struct AttentionBackward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value, output, d_output;
  HeadRows<const float> log_sum_exp;
  HeadRows<Gradient> d_query, d_key, d_value;
  bool adds = false;
};

/// Floats of scratch memory per running task, aligned to 64 bytes.
int64_t attention_forward_scratch(const AttentionSizes& sizes);
int64_t attention_backward_scratch(const AttentionSizes& sizes);

/// The task of one query head and queries [first, first + kAttentionTile).
void cpu_attention_forward(const AttentionForward<float, float>& block, int64_t head, int64_t first, float* scratch);
void cpu_attention_forward(const AttentionForward<BFloat16Bits, BFloat16Bits>& block, int64_t head, int64_t first,
                           float* scratch);
void cpu_attention_forward(const AttentionForward<BFloat16Bits, float>& block, int64_t head, int64_t first,
                           float* scratch);

/// The task of one key head and the query heads that read it.
void cpu_attention_backward(const AttentionBackward<float, float>& block, int64_t key_head, float* scratch);
void cpu_attention_backward(const AttentionBackward<BFloat16Bits, BFloat16Bits>& block, int64_t key_head,
                            float* scratch);
void cpu_attention_backward(const AttentionBackward<BFloat16Bits, float>& block, int64_t key_head, float* scratch);

// Shared by attention's forward and backward: tile sizes, the part of a tile that the causal mask leaves, and products
// that skip the rest. Score tiles are stored transposed, [keys][queries], so that queries fill the vector lanes and a
// softmax reduces along columns.

constexpr int kScoreRows = 4;  // keys per block of scores: its sums fill the vector registers

/// A tile of scores: query i sees key j if j + offset ≤ i.
struct ScoreTile {
  int64_t queries;
  int64_t keys;
  int64_t offset;  // position of the first key minus that of the first query; at most −keys if nothing is masked

  /// The tile of `queries` queries from `first` on and the keys from `key` on.
  static ScoreTile of(const AttentionSizes& sizes, int64_t first, int64_t queries, int64_t key) {
    const int64_t keys = std::min(kAttentionTile, sizes.keys_before(first + queries) - key);
    return {queries, keys, sizes.causal ? key - first : -keys};
  }

  /// Query i sees keys [0, result).
  int64_t keys_seen(int64_t query) const { return std::clamp(query + 1 - offset, int64_t{0}, keys); }
  /// The first query that sees key j.
  int64_t first_query(int64_t key) const { return std::max(key + offset, int64_t{0}); }
};

/// scores[j][i] = Σ_c rows[j][c] · columns[c][i] for whole vectors with at least one query that sees key j. Reads and
/// writes up to the next multiple of four rows.
template <class S>
TITAN_INLINE void score_product(float* scores, const float* rows, int64_t row_size, const float* columns,
                                int64_t head_dim, const ScoreTile& tile) {
  const int64_t vectors = round_up(tile.queries, S::kLanes) / S::kLanes;
  for (int64_t key = 0; key < tile.keys; key += kScoreRows) {
    for (int64_t v = tile.first_query(key) / S::kLanes; v < vectors;) {
      float* out = scores + key * kAttentionTile + v * S::kLanes;
      const float* a = rows + key * row_size;
      const float* b = columns + v * S::kLanes;
      const int64_t left = vectors - v;
      if (S::kColumns == 4 && left >= 4) {
        multiply_block<S, Start::zero, kScoreRows, 4>(out, kAttentionTile, a, row_size, 1, b, kAttentionTile, head_dim,
                                                      nullptr);
        v += 4;
      } else if (S::kColumns == 4 && left == 3) {
        multiply_block<S, Start::zero, kScoreRows, 3>(out, kAttentionTile, a, row_size, 1, b, kAttentionTile, head_dim,
                                                      nullptr);
        v += 3;
      } else if (left >= 2) {
        multiply_block<S, Start::zero, kScoreRows, 2>(out, kAttentionTile, a, row_size, 1, b, kAttentionTile, head_dim,
                                                      nullptr);
        v += 2;
      } else {
        multiply_block<S, Start::zero, kScoreRows, 1>(out, kAttentionTile, a, row_size, 1, b, kAttentionTile, head_dim,
                                                      nullptr);
        v += 1;
      }
    }
  }
}

/// out[i][c] = (start) + Σ_j scores[j][i] · rows[j][c] over the keys j that query i sees.
template <class S, Start kStart, int kColumns>
TITAN_INLINE void sum_over_keys_by(float* out, const float* scores, const float* rows, int64_t row_size,
                                   const ScoreTile& tile, const float* factors) {
  constexpr int kRows = S::kAccumulators / kColumns;
  for (int64_t query = 0; query < tile.queries; query += kRows) {
    const int64_t keys = tile.keys_seen(query + kRows - 1);
    for (int64_t column = 0; column < row_size; column += kColumns * S::kLanes) {
      multiply_block<S, kStart, kRows, kColumns>(out + query * row_size + column, row_size, scores + query, 1,
                                                 kAttentionTile, rows + column, row_size, keys, factors + query);
    }
  }
}

/// out[j][c] += Σ_i scores[j][i] · rows[i][c] over the queries i that see key j.
template <class S, int kColumns>
TITAN_INLINE void sum_over_queries_by(float* out, const float* scores, const float* rows, int64_t row_size,
                                      const ScoreTile& tile) {
  constexpr int kRows = S::kAccumulators / kColumns;
  for (int64_t key = 0; key < tile.keys; key += kRows) {
    const int64_t first = tile.first_query(key);
    const int64_t queries = std::max(tile.queries - first, int64_t{0});
    for (int64_t column = 0; column < row_size; column += kColumns * S::kLanes) {
      multiply_block<S, Start::add, kRows, kColumns>(out + key * row_size + column, row_size,
                                                     scores + key * kAttentionTile + first, kAttentionTile, 1,
                                                     rows + first * row_size + column, row_size, queries, nullptr);
    }
  }
}

template <class S, Start kStart>
TITAN_INLINE void sum_over_keys(float* out, const float* scores, const float* rows, int64_t row_size,
                                const ScoreTile& tile, const float* factors) {
  const int64_t vectors = row_size / S::kLanes;
  if (S::kColumns == 4 && vectors % 4 == 0) {
    sum_over_keys_by<S, kStart, 4>(out, scores, rows, row_size, tile, factors);
  } else if (vectors % 2 == 0) {
    sum_over_keys_by<S, kStart, 2>(out, scores, rows, row_size, tile, factors);
  } else {
    sum_over_keys_by<S, kStart, 1>(out, scores, rows, row_size, tile, factors);
  }
}

template <class S>
TITAN_INLINE void sum_over_queries(float* out, const float* scores, const float* rows, int64_t row_size,
                                   const ScoreTile& tile) {
  const int64_t vectors = row_size / S::kLanes;
  if (S::kColumns == 4 && vectors % 4 == 0) {
    sum_over_queries_by<S, 4>(out, scores, rows, row_size, tile);
  } else if (vectors % 2 == 0) {
    sum_over_queries_by<S, 2>(out, scores, rows, row_size, tile);
  } else {
    sum_over_queries_by<S, 1>(out, scores, rows, row_size, tile);
  }
}

/// Loads rows [first, first + keys) of one key head, zero-padded for score_product.
template <class T>
TITAN_INLINE void load_keys(float* tile, int64_t row_size, const HeadRows<const T>& rows, int64_t head, int64_t first,
                            int64_t keys, int64_t head_dim) {
  load_tile(tile, row_size, rows.row(head, first), rows.place_stride, keys, head_dim, round_up(keys, kScoreRows));
}

/// Lane numbers 0, 1, 2, ... as fp32.
template <class S>
TITAN_INLINE void number_lanes(typename S::Vector& lanes) {
#pragma GCC unroll 16
  for (int i = 0; i < S::kLanes; ++i) lanes[i] = static_cast<float>(i);
}

}  // namespace titan
