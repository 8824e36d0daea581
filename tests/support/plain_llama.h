// The model written plainly with torch operations in float64, differentiated by torch's autograd: what the executor,
// the operations and the recompute policies together must reproduce. Knows none of them.
#pragma once

#include <map>
#include <string>

#include "operation.h"
#include "titan/model/llama/llama.h"
#include "titan/ops/rotary.h"
#include "titan/stream/batch_stream.h"

namespace titan {

struct PlainLlama {
  /// `weights` by name, as float64 leaves.
  PlainLlama(const LlamaArguments& arguments, std::map<std::string, at::Tensor> weights)
      : arguments(arguments), weights(std::move(weights)) {}

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const bool centred = arguments.norm == NormType::layernorm || arguments.norm == NormType::np_layernorm;
    const at::Tensor y = centred ? x - x.mean(-1, true) : x;
    const at::Tensor unit = y * (y.square().mean(-1, true) + arguments.norm_epsilon).rsqrt();
    return arguments.norm == NormType::np_layernorm ? unit : unit * weights.at(name);
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const { return x.matmul(weights.at(name).t()); }

  at::Tensor rotate(const at::Tensor& x) const {
    const at::Tensor table = rotary_table(x.size(1), x.size(3), arguments.rope_theta, arguments.rope_scaling)
                                 .to(at::kComplexDouble)
                                 .unsqueeze(1);
    const at::Tensor pairs = at::view_as_complex(x.unflatten(3, {x.size(3) / 2, 2}).contiguous());
    return at::view_as_real(pairs * table).flatten(3);
  }

  at::Tensor attention(const at::Tensor& x, const std::string& prefix) const {
    auto heads = [&](const char* name, int64_t count) {
      return linear(x, prefix + name).unflatten(2, {count, arguments.head_dim});
    };
    const int64_t repeats = arguments.heads / arguments.kv_heads;
    const at::Tensor q = rotate(heads("wq.weight", arguments.heads)).transpose(1, 2);
    const at::Tensor k = rotate(heads("wk.weight", arguments.kv_heads)).transpose(1, 2).repeat_interleave(repeats, 1);
    const at::Tensor v = heads("wv.weight", arguments.kv_heads).transpose(1, 2).repeat_interleave(repeats, 1);
    const at::Tensor future = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(arguments.head_dim));
    const at::Tensor mixed = scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v);
    return linear(mixed.transpose(1, 2).flatten(2), prefix + "wo.weight");
  }

  at::Tensor logits(const at::Tensor& tokens) const {
    at::Tensor h = weights.at("tok_embeddings.weight").index_select(0, tokens.flatten());
    h = h.view({tokens.size(0), tokens.size(1), arguments.dim});
    for (int64_t layer = 0; layer < arguments.layers; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      h = h + attention(norm(h, prefix + "attention_norm.weight"), prefix + "attention.");
      const at::Tensor y = norm(h, prefix + "ffn_norm.weight");
      const at::Tensor gate = linear(y, prefix + "feed_forward.w1.weight");
      const at::Tensor up = linear(y, prefix + "feed_forward.w3.weight");
      h = h + linear(gate * gate.sigmoid() * up, prefix + "feed_forward.w2.weight");
    }
    return linear(norm(h, "norm.weight"), arguments.tied ? "tok_embeddings.weight" : "output.weight");
  }

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels, double scale) const {
    const at::Tensor targets = labels.flatten();
    const at::Tensor rows = logits(tokens).flatten(0, 1).log_softmax(1);
    const at::Tensor picked = rows.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
    return -(picked * targets.ne(kIgnoredLabel)).sum() * scale;
  }

  LlamaArguments arguments;
  std::map<std::string, at::Tensor> weights;
};

}  // namespace titan
