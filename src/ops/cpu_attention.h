// Causal attention on the CPU over raw memory, tiled with an online softmax (Dao, "FlashAttention-2", 2023): no matrix
// of scores is ever in memory. Values are fp32 or bf16 in memory and fp32 in tiles. A task's bits depend on its inputs
// alone and tasks write to places of their own, so they may run on any thread in any order.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// Queries and keys of one tile.
inline constexpr int64_t kAttentionTile = 64;

/// One document's part of a [B, T, H, d] tensor: value c of head h at place t is first[t·place_stride + h·head_stride +
/// c].
template <class T>
struct HeadRows {
  T* first = nullptr;
  int64_t place_stride = 0;
  int64_t head_stride = 0;

  T* row(int64_t head, int64_t place) const { return first + head * head_stride + place * place_stride; }
};

struct AttentionSizes {
  int64_t length;  // places of the document
  int64_t query_heads;
  int64_t key_heads;  // divides query_heads: query head h reads key head h / (query_heads / key_heads)
  int64_t head_dim;
};

/// All heads of one document: output = softmax(q·kᵀ/√d, causal)·v, and the natural logarithm of each row's sum.
template <class T>
struct AttentionForward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value;
  HeadRows<T> output;
  HeadRows<float> log_sum_exp;  // place_stride 1
};

template <class T>
struct AttentionBackward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value, output, d_output;
  HeadRows<const float> log_sum_exp;
  HeadRows<T> d_query, d_key, d_value;
};

/// Floats of scratch memory, aligned to 64 bytes, that one running task needs.
int64_t attention_forward_scratch(const AttentionSizes& sizes);
int64_t attention_backward_scratch(const AttentionSizes& sizes);

/// The task of one query head and the queries [first, first + kAttentionTile).
void cpu_attention_forward(const AttentionForward<float>& document, int64_t head, int64_t first, float* scratch);
void cpu_attention_forward(const AttentionForward<BFloat16Bits>& document, int64_t head, int64_t first, float* scratch);

/// The task of one key head and the query heads that read it.
void cpu_attention_backward(const AttentionBackward<float>& document, int64_t key_head, float* scratch);
void cpu_attention_backward(const AttentionBackward<BFloat16Bits>& document, int64_t key_head, float* scratch);

}  // namespace titan
