#include <cmath>

#include "cpu_attention_tiles.h"

namespace titan {
namespace {

/// Scratch memory of a tile of queries of one head.
struct ForwardTiles {
  int64_t floats;     // of all of it
  int64_t row_size;   // head_dim in whole vectors
  float* queries;     // [row_size][kAttentionTile], q·log2(e)/√d transposed
  float* rows;        // [kAttentionTile][row_size] before transposition; then the output's sums
  float* keys;        // [kAttentionTile][row_size]
  float* values;      // [kAttentionTile][row_size]
  float* scores;      // [kAttentionTile][kAttentionTile]
  float* largest;     // [kAttentionTile] the largest score so far, in powers of two
  float* sum;         // [kAttentionTile] of 2^(score − largest)
  float* correction;  // [kAttentionTile] what sums so far are multiplied by

  ForwardTiles(int64_t head_dim, float* memory) : row_size(round_up(head_dim, kRowMultiple)) {
    Scratch scratch{memory};
    queries = scratch.take(row_size * kAttentionTile);
    rows = scratch.take(kAttentionTile * row_size);
    keys = scratch.take(kAttentionTile * row_size);
    values = scratch.take(kAttentionTile * row_size);
    scores = scratch.take(kAttentionTile * kAttentionTile);
    largest = scratch.take(kAttentionTile);
    sum = scratch.take(kAttentionTile);
    correction = scratch.take(kAttentionTile);
    floats = scratch.floats;
  }
};

/// The scores of one vector of queries, `at` its first: masked, their running maximum and sum brought up to date, and
/// each replaced by 2^(score − maximum).
template <class S>
TITAN_INLINE void soften(const ForwardTiles& t, const ScoreTile& tile, int64_t at) {
  using Vector = typename S::Vector;
  const int64_t keys = tile.keys_seen(at + S::kLanes - 1);
  float* column = t.scores + at;
  auto score = [&](int64_t key) __attribute__((always_inline))->Vector& {
    return vector_at<S>(column + key * kAttentionTile);
  };
  Vector lanes;
  number_lanes<S>(lanes);
  for (int64_t key = tile.keys_seen(at); key < keys; ++key) {
    const Vector unseen = Vector{} - __builtin_inff();
    score(key) = lanes < static_cast<float>(key + tile.offset - at) ? unseen : score(key);
  }
  Vector largest[4];
  for (Vector& vector : largest) vector = vector_at<S>(t.largest + at);
  int64_t key = 0;
  for (; key + 4 <= keys; key += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) largest[i] = score(key + i) > largest[i] ? score(key + i) : largest[i];
  }
  for (; key < keys; ++key) largest[0] = score(key) > largest[0] ? score(key) : largest[0];
  largest[0] = largest[1] > largest[0] ? largest[1] : largest[0];
  largest[2] = largest[3] > largest[2] ? largest[3] : largest[2];
  largest[0] = largest[2] > largest[0] ? largest[2] : largest[0];

  Vector correction = vector_at<S>(t.largest + at) - largest[0];
  power_of_two<S>(correction);
  Vector sum = vector_at<S>(t.sum + at) * correction;
  for (key = 0; key < keys; ++key) {
    Vector weight = score(key) - largest[0];
    power_of_two<S>(weight);
    score(key) = weight;
    sum += weight;
  }
  vector_at<S>(t.largest + at) = largest[0];
  vector_at<S>(t.sum + at) = sum;
  vector_at<S>(t.correction + at) = correction;
}

/// Loads the queries and empties the sums.
template <class S, class T>
TITAN_INLINE void start(const AttentionForward<T>& document, const ForwardTiles& t, int64_t head, int64_t first,
                        int64_t queries) {
  const int64_t dim = document.sizes.head_dim;
  const float scale = kLog2e / __builtin_sqrtf(static_cast<float>(dim));
  load_tile(t.rows, t.row_size, document.query.row(head, first), document.query.place_stride, queries, dim,
            kAttentionTile);
  transpose_tile<S>(t.queries, kAttentionTile, t.rows, t.row_size, kAttentionTile, t.row_size, scale);
  std::fill(t.rows, t.rows + kAttentionTile * t.row_size, 0.0f);
  std::fill(t.largest, t.largest + kAttentionTile, -__builtin_inff());
  std::fill(t.sum, t.sum + kAttentionTile, 0.0f);
}

template <class S, class T>
TITAN_INLINE void forward(const AttentionForward<T>& document, int64_t head, int64_t first, float* scratch) {
  const auto [length, query_heads, key_heads, dim] = document.sizes;
  const ForwardTiles t(dim, scratch);
  const int64_t queries = std::min(kAttentionTile, length - first);
  const int64_t key_head = head / (query_heads / key_heads);
  start<S>(document, t, head, first, queries);
  for (int64_t key = 0; key < first + queries; key += kAttentionTile) {
    const ScoreTile tile{queries, std::min(kAttentionTile, first + queries - key), key - first};
    load_keys(t.keys, t.row_size, document.key, key_head, key, tile.keys, dim);
    load_keys(t.values, t.row_size, document.value, key_head, key, tile.keys, dim);
    score_product<S>(t.scores, t.keys, t.row_size, t.queries, dim, tile);
    for (int64_t at = 0; at < queries; at += S::kLanes) soften<S>(t, tile, at);
    sum_over_keys<S, Start::scale>(t.rows, t.scores, t.values, t.row_size, tile, t.correction);
  }
  float* log_sum_exp = document.log_sum_exp.row(head, first);
  for (int64_t i = 0; i < queries; ++i) {
    store_tile(document.output.row(head, first + i), 0, t.rows + i * t.row_size, t.row_size, 1, dim, 1 / t.sum[i]);
    log_sum_exp[i] = (t.largest[i] + std::log2(t.sum[i])) * kLn2;
  }
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_attention_forward, forward,
                  (const AttentionForward<float>& document, int64_t head, int64_t first, float* scratch),
                  (document, head, first, scratch))
TITAN_DEFINE_SIMD(cpu_attention_forward, forward,
                  (const AttentionForward<BFloat16Bits>& document, int64_t head, int64_t first, float* scratch),
                  (document, head, first, scratch))

int64_t attention_forward_scratch(const AttentionSizes& sizes) { return ForwardTiles(sizes.head_dim, nullptr).floats; }

}  // namespace titan
