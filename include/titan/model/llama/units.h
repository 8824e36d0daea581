// The three kinds of unit of a Llama: token embedding, transformer block, and the head with its loss.
// Each reads its weights through Parameter handles and its activations through a HiddenStates, so none of them knows
// where weights lie, what is recomputed or who runs it. Owned by the model; run by the executor.
#pragma once

#include <memory>

#include "titan/model/llama/llama.h"
#include "titan/model/model.h"

namespace titan {

/// Rotary rows that all blocks of a model share; made once, moved to the device before the first step.
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
  at::Tensor anchor_;
};

/// Handles of one block's parameters; norms are null for np_layernorm.
struct LlamaBlockParameters {
  Parameter *wq, *wk, *wv, *wo, *w1, *w2, *w3;
  Parameter *attention_norm = nullptr, *ffn_norm = nullptr;
};

/// h = x + wo·attention(norm(x)); out = h + w2·(silu(w1·norm(h)) · w3·norm(h)).
class LlamaBlock : public Unit {
 public:
  LlamaBlock(int64_t layer, const LlamaArguments& arguments, const LlamaBlockParameters& parameters,
             std::shared_ptr<const RotaryTable> rotary, const ModelStrategies& strategies);
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override;

 private:
  std::shared_ptr<const RotaryTable> rotary_;
  Norm attention_norm_;
  Norm ffn_norm_;
  ParallelLinear query_key_value_;
  ParallelLinear attention_output_;
  ParallelLinear gate_up_;
  ParallelLinear down_;
  int64_t head_dim_;
  std::unique_ptr<AttentionCore> attention_;
};

/// Norm, output product and loss. `norm` is null for np_layernorm.
class LlamaHead : public Unit {
 public:
  LlamaHead(const LlamaArguments& arguments, Parameter* norm, Parameter& output, const ModelStrategies& strategies);
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override;

 private:
  Norm norm_;
  Parameter& output_;
  int64_t loss_chunks_;
  bool round_weight_gradient_;
  std::shared_ptr<const TensorParallel> tensor_parallel_;
};

}  // namespace titan
