// Llama's units as tensors: the model that plan/llama.h describes. Relatives of Llama, such as Qwen, are separate
// families that use the same units. Included only by such families, the registry and tests.
#pragma once

#include <memory>
#include <vector>

#include "titan/model/model.h"
#include "titan/plan/llama.h"

namespace titan {

/// What a relative of Llama computes between the projections of queries, keys and values and their rotation. Stateless.
class LlamaVariant {
 public:
  virtual ~LlamaVariant() = default;
  /// `qkv`: [B, T, heads, head_dim] each, replaced or overwritten; `parameters`: those of its description.
  virtual void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters,
                     const LlamaArguments& arguments, UnitContext& context) const = 0;
};

const ModelFamily& llama_family();

/// `variant` is null if and only if the arguments have none.
std::unique_ptr<Model> build_llama(const LlamaArguments& arguments, const ModelStrategies& strategies,
                                   const LlamaVariant* variant = nullptr);

}  // namespace titan
