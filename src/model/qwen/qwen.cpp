#include "titan/model/qwen/qwen.h"

#include <array>

#include "state_dict_adapter.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/model/llama/llama.h"
#include "titan/ops/bias.h"

namespace titan {
namespace {

/// Qwen 2: biases of queries, keys and values.
class AttentionBiases : public LlamaVariant {
 public:
  std::vector<ParameterSpec> parameters(const LlamaArguments& a, int64_t layer) const override {
    const Initialiser zero{Initialiser::Kind::zeros};
    std::vector<ParameterSpec> specs;
    for (const auto& [name, heads] : {std::pair{"wq", a.heads}, {"wk", a.kv_heads}, {"wv", a.kv_heads}}) {
      specs.push_back({fmt::format("layers.{}.attention.{}.bias", layer, name), {heads * a.head_dim}, zero, true, 0});
    }
    return specs;
  }

  void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters, const LlamaArguments&,
             UnitContext& context) const override {
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = add_bias(qkv[i], *parameters[i], static_cast<int>(i), context);
  }

  void trace(UnitTrace& trace, std::vector<TracedTensor>& qkv, const LlamaArguments&) const override {
    for (TracedTensor& tensor : qkv) tensor = trace_bias(trace, tensor);
  }
};

/// Qwen 3: an RMS norm over each head of queries and keys, with one weight for all heads.
class HeadNorms : public LlamaVariant {
 public:
  std::vector<ParameterSpec> parameters(const LlamaArguments& a, int64_t layer) const override {
    return {{fmt::format("layers.{}.attention.q_norm.weight", layer), {a.head_dim}, {}},
            {fmt::format("layers.{}.attention.k_norm.weight", layer), {a.head_dim}, {}}};
  }

  void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters, const LlamaArguments& a,
             UnitContext& context) const override {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Norm norm(a.norm, parameters[i], a.norm_epsilon, kFirstOrdinal + static_cast<int>(i));
      qkv[i] = norm.forward(qkv[i], {}, context).normed;
    }
  }

  void trace(UnitTrace& trace, std::vector<TracedTensor>& qkv, const LlamaArguments& a) const override {
    for (size_t i = 0; i < 2; ++i) {
      qkv[i] = trace_norm(trace, a.norm, qkv[i], kNoTensor, a.head_dim, kFirstOrdinal + static_cast<int>(i)).normed;
    }
  }

 private:
  static constexpr int kFirstOrdinal = 2;  // after the block's own norms
};

LlamaArguments qwen_arguments(const ModelRequest& request) {
  static const AttentionBiases biases;
  static const HeadNorms norms;
  LlamaArguments arguments = llama_arguments(request);
  if (arguments.norm != NormType::rmsnorm && arguments.norm != NormType::fused_rmsnorm) {
    throw Error(ExitCode::bad_config,
                fmt::format("model.norm_type = \"{}\": {} has only rmsnorm", request.norm_type, request.name));
  }
  arguments.variant = request.name == "qwen2" ? static_cast<const LlamaVariant*>(&biases) : &norms;
  return arguments;
}

class QwenFamily : public ModelFamily {
 public:
  std::vector<std::string> names() const override { return {"qwen2", "qwen3"}; }
  std::vector<std::string> flavors(std::string_view name) const override { return llama_flavors_of(name); }
  ModelDescription describe(const ModelRequest& request) const override {
    return describe_llama(request, qwen_arguments(request));
  }
  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    return build_llama(qwen_arguments(request), strategies);
  }
  RecomputePolicy policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks) const override {
    return llama_policy(selection, block, tensor_ranks);
  }
  const StateDictAdapter* adapter() const override { return &qwen_adapter(); }
  std::vector<std::string> notes(const ModelRequest&) const override { return {}; }
};

}  // namespace

const ModelFamily& qwen_family() {
  static const QwenFamily family;
  return family;
}

}  // namespace titan
