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

/// Loads the queries, and what their sums over other keys have come to: those of a softmax whose largest score is the
/// log-sum-exp, so that their sum is one.
template <class S, class T, class Output>
TITAN_INLINE void start(const AttentionForward<T, Output>& block, const ForwardTiles& t, int64_t head, int64_t first,
                        int64_t queries) {
  const int64_t dim = block.sizes.head_dim;
  const float scale = kLog2e / __builtin_sqrtf(static_cast<float>(dim));
  load_tile(t.rows, t.row_size, block.query.row(head, first), block.query.place_stride, queries, dim, kAttentionTile);
  transpose_tile<S>(t.queries, kAttentionTile, t.rows, t.row_size, kAttentionTile, t.row_size, scale);
  std::fill(t.largest, t.largest + kAttentionTile, -__builtin_inff());
  std::fill(t.sum, t.sum + kAttentionTile, 0.0f);
  if (!block.resumes) {
    std::fill(t.rows, t.rows + kAttentionTile * t.row_size, 0.0f);
    return;
  }
  const HeadRows<Output>& output = block.output;
  load_tile(t.rows, t.row_size, output.row(head, first), output.place_stride, queries, dim, kAttentionTile);
  const float* log_sum_exp = block.log_sum_exp.row(head, first);
  for (int64_t i = 0; i < queries; ++i) {
    t.largest[i] = log_sum_exp[i] * kLog2e;
    t.sum[i] = log_sum_exp[i] == -__builtin_inff() ? 0.0f : 1.0f;
  }
}

template <class S, class T, class Output>
TITAN_INLINE void forward(const AttentionForward<T, Output>& block, int64_t head, int64_t first, float* scratch) {
  const AttentionSizes& sizes = block.sizes;
  const int64_t dim = sizes.head_dim;
  const ForwardTiles t(dim, scratch);
  const int64_t queries = std::min(kAttentionTile, sizes.queries - first);
  const int64_t key_head = head / (sizes.query_heads / sizes.key_heads);
  start<S>(block, t, head, first, queries);
  for (int64_t key = 0; key < sizes.keys_before(first + queries); key += kAttentionTile) {
    const ScoreTile tile = ScoreTile::of(sizes, first, queries, key);
    load_keys(t.keys, t.row_size, block.key, key_head, key, tile.keys, dim);
    load_keys(t.values, t.row_size, block.value, key_head, key, tile.keys, dim);
    score_product<S>(t.scores, t.keys, t.row_size, t.queries, dim, tile);
    for (int64_t at = 0; at < queries; at += S::kLanes) soften<S>(t, tile, at);
    sum_over_keys<S, Start::scale>(t.rows, t.scores, t.values, t.row_size, tile, t.correction);
  }
  float* log_sum_exp = block.log_sum_exp.row(head, first);
  for (int64_t i = 0; i < queries; ++i) {
    store_tile(block.output.row(head, first + i), 0, t.rows + i * t.row_size, t.row_size, 1, dim, 1 / t.sum[i]);
    log_sum_exp[i] = (t.largest[i] + std::log2(t.sum[i])) * kLn2;
  }
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_attention_forward, forward,
                  (const AttentionForward<float, float>& block, int64_t head, int64_t first, float* scratch),
                  (block, head, first, scratch))
TITAN_DEFINE_SIMD(cpu_attention_forward, forward,
                  (const AttentionForward<BFloat16Bits, BFloat16Bits>& block, int64_t head, int64_t first,
                   float* scratch),
                  (block, head, first, scratch))
TITAN_DEFINE_SIMD(cpu_attention_forward, forward,
                  (const AttentionForward<BFloat16Bits, float>& block, int64_t head, int64_t first, float* scratch),
                  (block, head, first, scratch))

int64_t attention_forward_scratch(const AttentionSizes& sizes) { return ForwardTiles(sizes.head_dim, nullptr).floats; }

}  // namespace titan
