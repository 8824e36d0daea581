#include "titan/plan/qwen.h"

#include <fmt/format.h>

#include "titan/base/error.h"

namespace titan {
namespace {

/// Qwen 2: biases of queries, keys and values.
class AttentionBiases : public LlamaVariantDescription {
 public:
  std::vector<ParameterSpec> parameters(const LlamaArguments& a, int64_t layer) const override {
    const Initialiser zero{Initialiser::Kind::zeros};
    std::vector<ParameterSpec> specs;
    for (const auto& [name, heads] : {std::pair{"wq", a.heads}, {"wk", a.kv_heads}, {"wv", a.kv_heads}}) {
      const std::string full_name = fmt::format("layers.{}.attention.{}.bias", layer, name);
      specs.push_back({full_name, {heads * a.head_dim}, zero, true, {{MeshAxis::tp, 0}}});
    }
    return specs;
  }

  void trace(UnitTrace& trace, std::vector<TracedTensor>& qkv, const LlamaArguments&) const override {
    for (TracedTensor& tensor : qkv) tensor = trace_bias(trace, tensor);
  }
};

/// Qwen 3: an RMS norm over each head of queries and keys, with one weight for all heads.
class HeadNorms : public LlamaVariantDescription {
 public:
  std::vector<ParameterSpec> parameters(const LlamaArguments& a, int64_t layer) const override {
    return {{fmt::format("layers.{}.attention.q_norm.weight", layer), {a.head_dim}, {}},
            {fmt::format("layers.{}.attention.k_norm.weight", layer), {a.head_dim}, {}}};
  }

  bool reads_products() const override { return true; }

  void trace(UnitTrace& trace, std::vector<TracedTensor>& qkv, const LlamaArguments& a) const override {
    for (size_t i = 0; i < 2; ++i) {
      qkv[i] = trace_norm(trace, a.norm, qkv[i], kNoTensor, a.head_dim, kFirstHeadNorm + static_cast<int>(i)).normed;
    }
  }
};

class QwenArchitecture : public Architecture {
 public:
  std::vector<std::string> names() const override { return {"qwen2", "qwen3"}; }
  std::vector<std::string> flavors(std::string_view name) const override { return llama_flavors_of(name); }
  ModelDescription describe(const ModelRequest& request) const override {
    return describe_llama(request, qwen_arguments(request));
  }
};

}  // namespace

LlamaArguments qwen_arguments(const ModelRequest& request) {
  static const AttentionBiases biases;
  static const HeadNorms norms;
  LlamaArguments arguments = llama_arguments(request);
  if (!is_rms_norm(arguments.norm)) {
    throw Error(ExitCode::bad_config, fmt::format("model.norm_type = \"{}\": {} has only rmsnorm",
                                                  word_of(arguments.norm), request.model.name));
  }
  arguments.variant = request.model.name == "qwen2" ? static_cast<const LlamaVariantDescription*>(&biases) : &norms;
  return arguments;
}

const Architecture& qwen_architecture() {
  static const QwenArchitecture architecture;
  return architecture;
}

}  // namespace titan
