// Llama's three kinds of unit: token embedding, transformer block, and head with loss. They access weights through
// Parameter handles and activations through HiddenStates, so they know no weight storage, recompute or schedule. Owned
// by the model; run by the executor.
#pragma once

#include <memory>

#include "titan/model/llama/llama.h"
#include "titan/model/model.h"
#include "titan/ops/norm.h"
#include "titan/ops/rotary.h"

namespace titan {

/// Rotary rows shared by all blocks of a model; computed once, moved to the device before the first step.
struct RotaryTable {
  at::Tensor rows;  // complex64 [max sequence, head_dim / 2]
};

class LlamaEmbedding : public Unit {
 public:
  LlamaEmbedding(Parameter& weight, const ModelStrategies& strategies);
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override;

 private:
  Parameter& weight_;
  std::shared_ptr<const SequenceParallel> exchange_;
  at::Tensor anchor_;  // [0]: requires a gradient, so that backward runs for this unit
};

/// Handles of one block's parameters; norms are null for np_layernorm.
struct LlamaBlockParameters {
  Parameter *wq, *wk, *wv, *wo, *w1, *w2, *w3;
  Parameter *attention_norm = nullptr, *ffn_norm = nullptr;
  std::vector<Parameter*> variant = {};  // LlamaVariantDescription::parameters
};

/// h = x + wo·attention(variant(qkv(norm(x)))); out = h + w2·(silu(w1·norm(h)) · w3·norm(h)).
class LlamaBlock : public Unit {
 public:
  /// `variant`: null for Llama itself.
  LlamaBlock(int64_t layer, const LlamaArguments& arguments, const LlamaBlockParameters& parameters,
             const LlamaVariant* variant, std::shared_ptr<const RotaryTable> rotary, const ModelStrategies& strategies);
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override;

 private:
  int64_t layer_;
  std::shared_ptr<const RotaryTable> rotary_;
  Norm attention_norm_;
  Norm ffn_norm_;
  ParallelLinear query_key_value_;
  ParallelLinear attention_output_;
  ParallelLinear gate_up_;
  ParallelLinear down_;
  LlamaArguments arguments_;
  const LlamaVariant* variant_;
  std::vector<Parameter*> variant_parameters_;
  std::unique_ptr<AttentionCore> attention_;
};

/// Norm, output projection and loss. `norm` is null for np_layernorm.
class LlamaHead : public Unit {
 public:
  LlamaHead(const LlamaArguments& arguments, Parameter* norm, Parameter& output, const ModelStrategies& strategies);
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override;

 private:
  Norm norm_;
  Parameter& output_;
  std::shared_ptr<const TensorParallel> tensor_parallel_;
  CrossEntropyOptions loss_;  // but for the scale, which every microbatch has
};

}  // namespace titan
