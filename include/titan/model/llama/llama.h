// Llama 2, 3, 3.1 and 3.2: the family's registry entry and its arguments. A request (name, flavor, size overrides,
// tokenizer) gives arguments; these give a description without tensors, and the model. Included only by this folder,
// the registry and tests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/model/model.h"
#include "titan/ops/norm.h"
#include "titan/ops/rotary.h"

namespace titan {

/// One row of the flavor table; sources: docs/models.md.
struct LlamaFlavor {
  std::string_view family;  // "llama2" or "llama3": 3.1 shares the table of 3, 3.2 has its own rows
  std::string_view name;
  int64_t dim, layers, heads, kv_heads;
  double ffn_multiplier;  // 0: none
  int64_t multiple_of;
  double rope_theta;
  int64_t vocabulary;  // 0: the tokenizer's; negative: max(−value, tokenizer's)
  bool tied = false;
  bool block_causal = false;
};

struct LlamaArguments {
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, hidden = 0, vocabulary = 0, max_sequence = 0;
  double norm_epsilon = 1e-5;
  double rope_theta = 1e4;
  std::optional<RotaryScaling> rope_scaling;
  std::string rope_scaling_name;
  NormType norm = NormType::rmsnorm;
  bool tied = false;
  bool block_causal = false;

  int64_t head_dim() const { return dim / heads; }
};

const ModelFamily& llama_family();
std::span<const LlamaFlavor> llama_flavors();

/// Resolves a request against the table. Throws Error(bad_config), which names the nearest flavors for an unknown one.
LlamaArguments llama_arguments(const ModelRequest& request);

/// torchtitan's rule: trunc(8·dim/3) times the multiplier, rounded up to a multiple of `multiple_of`.
int64_t llama_hidden_size(int64_t dim, double multiplier, int64_t multiple_of);

/// Parameters of one block in storage order; of the embedding; of the head.
std::vector<ParameterSpec> llama_block_parameters(const LlamaArguments& arguments, int64_t layer);
ParameterSpec llama_embedding_parameter(const LlamaArguments& arguments);
std::vector<ParameterSpec> llama_head_parameters(const LlamaArguments& arguments);

/// Which results of a block are kept for the replay (table: docs/activation_checkpointing.md).
RecomputePolicy llama_policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks);

/// The operations of one block and of the head, as LlamaBlock::forward and LlamaHead::forward call them.
void trace_llama_block(UnitTrace& trace, const LlamaArguments& arguments, int64_t layer);
void trace_llama_head(UnitTrace& trace, const LlamaArguments& arguments);

}  // namespace titan
