#include "titan/model/llama/units.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "titan/base/error.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/embedding.h"
#include "titan/ops/swiglu.h"

namespace titan {
namespace {

/// The block's weights in the order of torchtitan's module tree. The norm np_layernorm has none.
std::vector<Parameter*> weights_of(const LlamaBlockParameters& p) {
  std::vector<Parameter*> weights{p.wq, p.wk, p.wv, p.wo, p.w1, p.w2, p.w3, p.attention_norm, p.ffn_norm};
  std::erase(weights, nullptr);
  weights.insert(weights.end(), p.variant.begin(), p.variant.end());
  return weights;
}

}  // namespace

LlamaEmbedding::LlamaEmbedding(Parameter& weight, const ModelStrategies& strategies)
    : Unit("tok_embeddings", {&weight}), weight_(weight), exchange_(strategies.exchange()) {
  anchor_ = at::empty({0}).set_requires_grad(true);
}

HiddenStates LlamaEmbedding::forward(const HiddenStates&, const BatchContext& batch, UnitContext& context) {
  return {embedding(anchor_, batch.tokens, weight_, exchange_.get(), context)};
}

// Ordinals number the results of one kind in forward order; llama_policy refers to them.
LlamaBlock::LlamaBlock(int64_t layer, const LlamaArguments& arguments, const LlamaBlockParameters& p,
                       const LlamaVariant* variant, std::shared_ptr<const RotaryTable> rotary,
                       const ModelStrategies& strategies)
    : Unit("layers." + std::to_string(layer), weights_of(p)),
      layer_(layer),
      rotary_(std::move(rotary)),
      attention_norm_(arguments.norm, p.attention_norm, arguments.norm_epsilon, 0),
      ffn_norm_(arguments.norm, p.ffn_norm, arguments.norm_epsilon, 1),
      query_key_value_({p.wq, p.wk, p.wv}, 0, strategies.products, LinearSplit::input, strategies.exchange()),
      attention_output_({p.wo}, 3, strategies.products, LinearSplit::output, strategies.exchange(),
                        /*reads_alone=*/false),  // attention also saves its output
      gate_up_({p.w1, p.w3}, 4, strategies.products, LinearSplit::input, strategies.exchange()),
      down_({p.w2}, 6, strategies.products, LinearSplit::output, strategies.exchange()),
      arguments_(arguments),
      variant_(variant),
      variant_parameters_(p.variant),
      attention_(
          make_attention_core(arguments.block_causal, strategies.context_parallel, strategies.attention_kernel)) {}

HiddenStates LlamaBlock::forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) {
  TITAN_CHECK(input.size() == 1, name(), input.size());  // operations check the tensors
  auto [x, normed_x] = attention_norm_.forward(input[0], {}, context);
  const HeadShape heads{batch.tokens.size(0), batch.tokens.size(1), arguments_.head_dim};
  // A variant changes query, key or value before the rotation, and a cache is filled token by token: each is a tensor
  // of its own there.
  const bool joins = !variant_ && context.mode != UnitMode::logits;
  const auto qkv_gradients = joins ? query_key_value_.column_gradients() : nullptr;
  std::vector<at::Tensor> qkv = query_key_value_.forward(normed_x, context, heads, qkv_gradients);
  normed_x.reset();
  if (variant_) variant_->apply(qkv, variant_parameters_, arguments_, context);
  auto [query, key] = rotate(qkv[0], qkv[1], rotary_->rows, batch.positions, context, qkv_gradients);
  at::Tensor attended = batch.cache ? batch.cache->attend(layer_, query, key, qkv[2])
                                    : attention_->forward(query, key, qkv[2], batch.bounds, context);
  qkv.clear();
  query.reset(), key.reset();
  at::Tensor delta = attention_output_.forward(attended, context)[0];
  attended.reset();
  auto [h, normed_h] = ffn_norm_.forward(x, delta, context);
  delta.reset();
  const auto gate_up_gradients = context.mode != UnitMode::logits ? gate_up_.column_gradients() : nullptr;
  std::vector<at::Tensor> gate_up = gate_up_.forward(normed_h, context, std::nullopt, gate_up_gradients);
  normed_h.reset();
  at::Tensor activated = swiglu(gate_up[0], gate_up[1], context, gate_up_gradients);
  gate_up.clear();
  return {add_closing(h, down_.forward(activated, context)[0], context)};
}

LlamaHead::LlamaHead(const LlamaArguments& arguments, Parameter* norm, Parameter& output,
                     const ModelStrategies& strategies)
    : Unit("head", norm ? std::vector<Parameter*>{norm, &output} : std::vector<Parameter*>{&output}),
      norm_(arguments.norm, norm, arguments.norm_epsilon, 0),
      output_(output),
      tensor_parallel_(strategies.tensor_parallel),
      loss_(strategies.loss) {
  loss_.tensor_parallel = tensor_parallel_.get();
}

HiddenStates LlamaHead::forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) {
  TITAN_CHECK(input.size() == 1, name(), input.size());
  at::Tensor normed = norm_.forward(input[0], {}, context).normed;
  if (context.mode == UnitMode::logits) {
    at::Tensor logits = linear_logits(normed, output_, tensor_parallel_.get(), batch.logit_rows);
    if (batch.logit_rows.defined()) return {logits};
    return {logits.view({batch.tokens.size(0), batch.tokens.size(1), -1})};
  }
  CrossEntropyOptions options = loss_;
  options.loss_scale = {batch.loss_scale, batch.loss_scale_at};
  return {linear_cross_entropy(normed, batch.labels, output_, options, context)};
}

}  // namespace titan
