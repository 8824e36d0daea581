// Llama 2, 3, 3.1, 3.2, and models that differ from them only in sizes (Mistral): the family's registry entry and its
// arguments. A request (name, flavor, overrides, tokenizer) gives arguments; these give a description without tensors,
// and the model. Relatives of Llama, such as Qwen, are separate families that use the same units. Included only by such
// families, the registry and tests.
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
  // 0: derived from `dim` and `heads`, and the usual epsilon.
  int64_t hidden = 0, head_dim = 0;
  double norm_epsilon = 0;
};

struct LlamaArguments;

/// How a relative of Llama changes queries, keys and values between their projections and the rotation. Stateless.
class LlamaVariant {
 public:
  virtual ~LlamaVariant() = default;
  /// The additional parameters of one block, after Llama's own in storage order.
  virtual std::vector<ParameterSpec> parameters(const LlamaArguments& arguments, int64_t layer) const = 0;
  /// `qkv`: [B, T, heads, head_dim] each, replaced or overwritten; `parameters`: those above.
  virtual void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters,
                     const LlamaArguments& arguments, UnitContext& context) const = 0;
  /// The operations of `apply`.
  virtual void trace(UnitTrace& trace, std::vector<TracedTensor>& qkv, const LlamaArguments& arguments) const = 0;
};

struct LlamaArguments {
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, hidden = 0, vocabulary = 0, max_sequence = 0;
  double norm_epsilon = 1e-5;
  double rope_theta = 1e4;
  std::optional<RotaryScaling> rope_scaling;
  std::string rope_scaling_name;
  NormType norm = NormType::rmsnorm;
  bool tied = false;
  bool block_causal = false;
  bool vocabulary_is_tokenizers = false;
  int64_t context = 0;                    // tokens; model.max_seq_len, else that of the published models
  const LlamaVariant* variant = nullptr;  // null: Llama
};

const ModelFamily& llama_family();
std::span<const LlamaFlavor> llama_flavors();
/// The names of a model's flavors.
std::vector<std::string> llama_flavors_of(std::string_view name);

/// Resolves a request against the table. Throws Error(bad_config); for an unknown flavor it names the nearest ones.
LlamaArguments llama_arguments(const ModelRequest& request);

/// The chain of units, and the model built from it.
ModelDescription describe_llama(const ModelRequest& request, const LlamaArguments& arguments);
std::unique_ptr<Model> build_llama(const LlamaArguments& arguments, const ModelStrategies& strategies);

/// torchtitan's rule: trunc(8·dim/3) times the multiplier, rounded up to a multiple of `multiple_of`.
int64_t llama_hidden_size(int64_t dim, double multiplier, int64_t multiple_of);

/// Parameters of one block in storage order; of the embedding; of the head.
std::vector<ParameterSpec> llama_block_parameters(const LlamaArguments& arguments, int64_t layer);
ParameterSpec llama_embedding_parameter(const LlamaArguments& arguments);
std::vector<ParameterSpec> llama_head_parameters(const LlamaArguments& arguments);

/// Which results of a block are saved for the replay (table: docs/activation_checkpointing.md).
RecomputePolicy llama_policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks);

/// The operations of one block and of the head, as LlamaBlock::forward and LlamaHead::forward call them.
void trace_llama_block(UnitTrace& trace, const LlamaArguments& arguments, int64_t layer);
void trace_llama_head(UnitTrace& trace, const LlamaArguments& arguments);

}  // namespace titan
