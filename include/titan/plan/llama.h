// Llama 2, 3, 3.1, 3.2, and models that differ from them only in sizes (Mistral), without tensors. A request (name,
// flavor, overrides, tokenizer) gives arguments; these give a description. Relatives of Llama, such as Qwen, are
// separate architectures that use the same units. Included only by such architectures, the registry, the families that
// build them and tests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/rotary_scaling.h"
#include "titan/plan/architecture.h"
#include "titan/plan/operations.h"

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

/// How a relative of Llama changes queries, keys and values between their projections and the rotation. Stateless; what
/// it computes is in model/llama/llama.h (LlamaVariant).
class LlamaVariantDescription {
 public:
  virtual ~LlamaVariantDescription() = default;
  /// The additional parameters of one block, after Llama's own in storage order.
  virtual std::vector<ParameterSpec> parameters(const LlamaArguments& arguments, int64_t layer) const = 0;
  /// Whether the backward of these operations reads queries and keys as their products make them.
  virtual bool reads_products() const { return false; }
  /// The operations of LlamaVariant::apply.
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
  int64_t context = 0;                               // tokens; model.max_seq_len, else that of the published models
  const LlamaVariantDescription* variant = nullptr;  // null: Llama
};

const Architecture& llama_architecture();
std::span<const LlamaFlavor> llama_flavors();
/// The names of a model's flavors.
std::vector<std::string> llama_flavors_of(std::string_view name);

/// Resolves a request against the table. Throws Error(bad_config); for an unknown flavor it names the nearest ones.
LlamaArguments llama_arguments(const ModelRequest& request);

/// The chain of units.
ModelDescription describe_llama(const ModelRequest& request, const LlamaArguments& arguments);

/// torchtitan's rule: trunc(8·dim/3) times the multiplier, rounded up to a multiple of `multiple_of`.
int64_t llama_hidden_size(int64_t dim, double multiplier, int64_t multiple_of);

/// The parameters of one block, of the embedding and of the head, each in storage order.
std::vector<ParameterSpec> llama_block_parameters(const LlamaArguments& arguments, int64_t layer);
ParameterSpec llama_embedding_parameter(const LlamaArguments& arguments);
std::vector<ParameterSpec> llama_head_parameters(const LlamaArguments& arguments);

/// Which results of a block are saved for the replay (table: docs/activation_checkpointing.md). `reads_products`: see
/// LlamaVariantDescription.
RecomputePolicy llama_policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks,
                             bool reads_products);

/// The operations of one block and of the head, as LlamaBlock::forward and LlamaHead::forward call them.
void trace_llama_block(UnitTrace& trace, const LlamaArguments& arguments, int64_t layer);
void trace_llama_head(UnitTrace& trace, const LlamaArguments& arguments);

}  // namespace titan
