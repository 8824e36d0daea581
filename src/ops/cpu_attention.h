// Attention on the CPU over raw memory, tiled with an online softmax (Dao, "FlashAttention-2", 2023): no matrix of
// scores is ever in memory. Values are fp32 or bf16 in memory and fp32 in tiles. One block of queries against one block
// of keys, causal or whole; several blocks of keys add up to what one would give. A task's bits depend on its inputs
// alone and tasks write to places of their own, so they may run on any thread in any order.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// Queries and keys of one tile.
inline constexpr int64_t kAttentionTile = 64;

/// One block's part of a [B, T, H, d] tensor: value c of head h at place t is first[t·place_stride + h·head_stride +
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
  bool causal;  // query i sees keys 0 … i of as many as there are queries; else every query sees every key
  int64_t query_heads;
  int64_t key_heads;  // divides query_heads: query head h reads key head h / (query_heads / key_heads)
  int64_t head_dim;

  /// Keys that any of the queries before `last` sees.
  int64_t keys_before(int64_t last) const { return causal ? last : keys; }
};

/// All heads of one block: output = softmax(q·kᵀ/√d)·v over the keys seen, and the natural logarithm of each row's sum.
/// `resumes`: output and log-sum-exp hold those of other keys (−∞: none yet), and become those of all keys together.
template <class T, class Output>
struct AttentionForward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value;
  HeadRows<Output> output;
  HeadRows<float> log_sum_exp;  // place_stride 1
  bool resumes = false;
};

/// The block's share of the gradients, given output and log-sum-exp over all the keys that its queries see anywhere.
/// `adds` to what is there instead of writing it.
template <class T, class Gradient>
struct AttentionBackward {
  AttentionSizes sizes;
  HeadRows<const T> query, key, value, output, d_output;
  HeadRows<const float> log_sum_exp;
  HeadRows<Gradient> d_query, d_key, d_value;
  bool adds = false;
};

/// Floats of scratch memory, aligned to 64 bytes, that one running task needs.
int64_t attention_forward_scratch(const AttentionSizes& sizes);
int64_t attention_backward_scratch(const AttentionSizes& sizes);

/// The task of one query head and the queries [first, first + kAttentionTile).
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

}  // namespace titan
