#include "cpu_attention.h"

#include <cmath>

namespace titan {
namespace {

/// Scratch memory for a tile of queries of one head.
struct ForwardTiles {
  int64_t floats;     // total size
  int64_t row_size;   // head_dim rounded up to whole vectors
  float* queries;     // [row_size][kAttentionTile], q·log2(e)/√d transposed
  float* rows;        // [kAttentionTile][row_size] before transposition; then the output accumulator
  float* keys;        // [kAttentionTile][row_size]
  float* values;      // [kAttentionTile][row_size]
  float* scores;      // [kAttentionTile][kAttentionTile]
  float* largest;     // [kAttentionTile] running maximum score, as a log2 value
  float* sum;         // [kAttentionTile] of 2^(score − largest)
  float* correction;  // [kAttentionTile] rescaling factor of the running sums

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

/// Scores of one vector of queries, starting at `at`: applies the mask, updates running maximum and sum, and replaces
/// each score by 2^(score − maximum).
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

/// Loads the queries and, to resume, the softmax state over other keys: the maximum is their log-sum-exp, so their sum
/// is 1.
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

namespace {

/// Scratch memory: a tile of queries of one head, a tile of keys, and the key head's gradients of the whole block.
struct BackwardTiles {
  int64_t floats;           // total size
  int64_t row_size;         // head_dim rounded up to whole vectors
  float* query_columns;     // [row_size][kAttentionTile], q·log2(e)/√d transposed
  float* query_rows;        // [kAttentionTile][row_size]
  float* d_output_columns;  // [row_size][kAttentionTile]
  float* d_output_rows;     // [kAttentionTile][row_size]
  float* d_query;           // [kAttentionTile][row_size]; initially the output's rows
  float* keys;              // [kAttentionTile][row_size]
  float* values;            // [kAttentionTile][row_size]
  float* weights;           // [kAttentionTile][kAttentionTile] scores, then softmax
  float* d_scores;          // [kAttentionTile][kAttentionTile] gradient of the softmax, then of the scores
  float* log_sum;           // [kAttentionTile] as log2 values
  float* delta;             // [kAttentionTile] Σ_c d_output · output
  float* d_keys;            // [keys][row_size]
  float* d_values;          // [keys][row_size]

  BackwardTiles(const AttentionSizes& sizes, float* memory) : row_size(round_up(sizes.head_dim, kRowMultiple)) {
    Scratch scratch{memory};
    for (float** tile : {&query_columns, &query_rows, &d_output_columns, &d_output_rows, &d_query}) {
      *tile = scratch.take(kAttentionTile * row_size);
    }
    for (float** tile : {&keys, &values}) *tile = scratch.take(kAttentionTile * row_size);
    for (float** tile : {&weights, &d_scores}) *tile = scratch.take(kAttentionTile * kAttentionTile);
    for (float** row : {&log_sum, &delta}) *row = scratch.take(kAttentionTile);
    for (float** whole : {&d_keys, &d_values}) *whole = scratch.take(round_up(sizes.keys, kAttentionTile) * row_size);
    floats = scratch.floats;
  }
};

/// delta[i] = Σ_c a[i][c] · b[i][c]; sizes are multiples of the lane count.
template <class S>
TITAN_INLINE void row_products(float* delta, const float* a, const float* b, int64_t row_size) {
  using Vector = typename S::Vector;
  for (int64_t row = 0; row < kAttentionTile; row += S::kLanes) {
    Vector sums[S::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < S::kLanes; ++i) {
      const int64_t at = (row + i) * row_size;
      sums[i] = vector_at<S>(a + at) * vector_at<S>(b + at);
      for (int64_t column = S::kLanes; column < row_size; column += S::kLanes) {
        sums[i] += vector_at<S>(a + at + column) * vector_at<S>(b + at + column);
      }
    }
    transpose<S>(sums);
    Vector total = sums[0];
#pragma GCC unroll 16
    for (int i = 1; i < S::kLanes; ++i) total += sums[i];
    vector_at<S>(delta + row) = total;
  }
}

/// weights ← 2^(score − log_sum) and d_scores ← weights · (d_weights − delta) for one vector of queries, starting at
/// `at`.
template <class S>
TITAN_INLINE void differentiate_softmax(const BackwardTiles& t, const ScoreTile& tile, int64_t at) {
  using Vector = typename S::Vector;
  const Vector log_sum = vector_at<S>(t.log_sum + at);
  const Vector delta = vector_at<S>(t.delta + at);
  const int64_t keys = tile.keys_seen(at + S::kLanes - 1);
  const int64_t seen_by_all = tile.keys_seen(at);
  for (int64_t key = 0; key < seen_by_all; ++key) {
    Vector& score = vector_at<S>(t.weights + key * kAttentionTile + at);
    Vector& d_score = vector_at<S>(t.d_scores + key * kAttentionTile + at);
    Vector weight = score - log_sum;
    power_of_two<S>(weight);
    score = weight;
    d_score = weight * (d_score - delta);
  }
  Vector lanes;
  number_lanes<S>(lanes);
  for (int64_t key = seen_by_all; key < keys; ++key) {
    Vector& score = vector_at<S>(t.weights + key * kAttentionTile + at);
    Vector& d_score = vector_at<S>(t.d_scores + key * kAttentionTile + at);
    Vector weight = score - log_sum;
    power_of_two<S>(weight);
    const auto unseen = lanes < static_cast<float>(key + tile.offset - at);
    score = unseen ? Vector{} : weight;
    d_score = unseen ? Vector{} : weight * (d_score - delta);
  }
}

template <class S, class T, class Gradient>
TITAN_INLINE void load_queries(const AttentionBackward<T, Gradient>& block, const BackwardTiles& t, int64_t head,
                               int64_t first, int64_t queries) {
  const int64_t dim = block.sizes.head_dim;
  auto load = [&](float* tile, const HeadRows<const T>& rows) __attribute__((always_inline)) {
    load_tile(tile, t.row_size, rows.row(head, first), rows.place_stride, queries, dim, kAttentionTile);
  };
  load(t.query_rows, block.query);
  load(t.d_output_rows, block.d_output);
  load(t.d_query, block.output);
  const float scale = kLog2e / __builtin_sqrtf(static_cast<float>(dim));
  transpose_tile<S>(t.query_columns, kAttentionTile, t.query_rows, t.row_size, kAttentionTile, t.row_size, scale);
  transpose_tile<S>(t.d_output_columns, kAttentionTile, t.d_output_rows, t.row_size, kAttentionTile, t.row_size, 1.0f);
  row_products<S>(t.delta, t.d_output_rows, t.d_query, t.row_size);
  const float* log_sum_exp = block.log_sum_exp.row(head, first);
  for (int64_t i = 0; i < kAttentionTile; ++i) t.log_sum[i] = i < queries ? log_sum_exp[i] * kLog2e : 0;
  std::fill(t.d_query, t.d_query + kAttentionTile * t.row_size, 0.0f);
}

/// Stores a finished tile, or adds it to memory.
template <class Gradient>
TITAN_INLINE void put_gradient(const HeadRows<Gradient>& rows, int64_t head, int64_t first, float* tile,
                               int64_t row_size, int64_t count, int64_t dim, float factor, bool adds) {
  if (adds) {
    add_tile(rows.row(head, first), rows.place_stride, tile, row_size, count, dim, factor);
  } else {
    store_tile(rows.row(head, first), rows.place_stride, tile, row_size, count, dim, factor);
  }
}

/// Adds the contribution of queries [first, first + queries) of one head to the key head's gradients, and writes the
/// queries' gradients.
template <class S, class T, class Gradient>
TITAN_INLINE void backward_tile(const AttentionBackward<T, Gradient>& block, const BackwardTiles& t, int64_t key_head,
                                int64_t head, int64_t first, int64_t queries) {
  const int64_t dim = block.sizes.head_dim;
  load_queries<S>(block, t, head, first, queries);
  for (int64_t key = 0; key < block.sizes.keys_before(first + queries); key += kAttentionTile) {
    const ScoreTile tile = ScoreTile::of(block.sizes, first, queries, key);
    load_keys(t.keys, t.row_size, block.key, key_head, key, tile.keys, dim);
    load_keys(t.values, t.row_size, block.value, key_head, key, tile.keys, dim);
    score_product<S>(t.weights, t.keys, t.row_size, t.query_columns, dim, tile);
    score_product<S>(t.d_scores, t.values, t.row_size, t.d_output_columns, dim, tile);
    for (int64_t at = 0; at < queries; at += S::kLanes) differentiate_softmax<S>(t, tile, at);
    sum_over_queries<S>(t.d_values + key * t.row_size, t.weights, t.d_output_rows, t.row_size, tile);
    sum_over_queries<S>(t.d_keys + key * t.row_size, t.d_scores, t.query_rows, t.row_size, tile);
    sum_over_keys<S, Start::add>(t.d_query, t.d_scores, t.keys, t.row_size, tile, nullptr);
  }
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(dim));
  put_gradient(block.d_query, head, first, t.d_query, t.row_size, queries, dim, scale, block.adds);
}

template <class S, class T, class Gradient>
TITAN_INLINE void backward(const AttentionBackward<T, Gradient>& block, int64_t key_head, float* scratch) {
  const AttentionSizes& sizes = block.sizes;
  const BackwardTiles t(sizes, scratch);
  const int64_t repeats = sizes.query_heads / sizes.key_heads;
  const int64_t whole = round_up(sizes.keys, kAttentionTile) * t.row_size;
  for (float* sums : {t.d_keys, t.d_values}) std::fill(sums, sums + whole, 0.0f);
  for (int64_t head = key_head * repeats; head < (key_head + 1) * repeats; ++head) {
    for (int64_t first = 0; first < sizes.queries; first += kAttentionTile) {
      backward_tile<S>(block, t, key_head, head, first, std::min(kAttentionTile, sizes.queries - first));
    }
  }
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(sizes.head_dim));
  put_gradient(block.d_key, key_head, 0, t.d_keys, t.row_size, sizes.keys, sizes.head_dim, scale, block.adds);
  put_gradient(block.d_value, key_head, 0, t.d_values, t.row_size, sizes.keys, sizes.head_dim, 1.0f, block.adds);
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_attention_backward, backward,
                  (const AttentionBackward<float, float>& block, int64_t key_head, float* scratch),
                  (block, key_head, scratch))
TITAN_DEFINE_SIMD(cpu_attention_backward, backward,
                  (const AttentionBackward<BFloat16Bits, BFloat16Bits>& block, int64_t key_head, float* scratch),
                  (block, key_head, scratch))
TITAN_DEFINE_SIMD(cpu_attention_backward, backward,
                  (const AttentionBackward<BFloat16Bits, float>& block, int64_t key_head, float* scratch),
                  (block, key_head, scratch))

int64_t attention_backward_scratch(const AttentionSizes& sizes) { return BackwardTiles(sizes, nullptr).floats; }

}  // namespace titan
