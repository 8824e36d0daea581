#include "titan/model/llama/llama.h"

#include <algorithm>
#include <cmath>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/model/llama/state_dict_adapter.h"
#include "titan/model/llama/units.h"
#include "titan/ops/embedding.h"

namespace titan {
namespace {

constexpr double kInitialDeviation = 0.02;

Initialiser truncated(double deviation, double bound = 2.0) {
  return {Initialiser::Kind::truncated_normal, deviation, -bound, bound};
}

/// A matrix; tensor parallelism shards its outputs (rows: dimension 0) or its inputs (columns: 1).
ParameterSpec matrix(std::string name, int64_t rows, int64_t columns, Initialiser initialiser, int64_t cut) {
  return {std::move(name), {rows, columns}, initialiser, true, cut};
}
constexpr int64_t kRows = 0;
constexpr int64_t kColumns = 1;

ParameterSpec norm_parameter(const std::string& name, const LlamaArguments& arguments) {
  return {name, {arguments.dim}, {}};
}

bool has_norm_weights(const LlamaArguments& arguments) { return arguments.norm != NormType::np_layernorm; }

class LlamaModel : public Model {
 public:
  LlamaModel(const LlamaArguments& arguments, const ModelStrategies& strategies)
      : arguments_(arguments), rotary_(std::make_shared<RotaryTable>()) {
    Parameter& embedding = add_parameter(llama_embedding_parameter(arguments));
    chain_.push_back(std::make_shared<LlamaEmbedding>(embedding, strategies));
    for (int64_t layer = 0; layer < arguments.layers; ++layer) {
      chain_.push_back(std::make_shared<LlamaBlock>(layer, arguments, add_block(layer), rotary_, strategies));
    }
    add_head(strategies, embedding);
  }

  void prepare(const at::Device& device) override {
    rotary_->rows =
        rotary_table(arguments_.max_sequence, arguments_.head_dim, arguments_.rope_theta, arguments_.rope_scaling)
            .to(device);
  }

 private:
  LlamaBlockParameters add_block(int64_t layer) {
    const std::vector<ParameterSpec> specs = llama_block_parameters(arguments_, layer);
    auto named = [&](const std::string& suffix) -> Parameter* {
      for (const ParameterSpec& spec : specs) {
        if (spec.name.ends_with(suffix)) return &add_parameter(spec);
      }
      return nullptr;
    };
    LlamaBlockParameters p{};
    p.wq = named(".wq.weight"), p.wk = named(".wk.weight"), p.wv = named(".wv.weight"), p.wo = named(".wo.weight");
    p.w1 = named(".w1.weight"), p.w2 = named(".w2.weight"), p.w3 = named(".w3.weight");
    p.attention_norm = named(".attention_norm.weight"), p.ffn_norm = named(".ffn_norm.weight");
    if (arguments_.variant) {
      for (const ParameterSpec& spec : arguments_.variant->parameters(arguments_, layer)) {
        p.variant.push_back(&add_parameter(spec));
      }
    }
    return p;
  }

  void add_head(const ModelStrategies& strategies, Parameter& embedding) {
    Parameter* norm = nullptr;
    Parameter* output = arguments_.tied ? &embedding : nullptr;
    for (const ParameterSpec& spec : llama_head_parameters(arguments_)) {
      (spec.name == "norm.weight" ? norm : output) = &add_parameter(spec);
    }
    chain_.push_back(std::make_shared<LlamaHead>(arguments_, norm, *output, strategies));
  }

  LlamaArguments arguments_;
  std::shared_ptr<RotaryTable> rotary_;
};

class LlamaFamily : public ModelFamily {
 public:
  std::vector<std::string> names() const override {
    return {"llama2", "llama3", "llama3_1", "llama3_2", "llama", "mistral"};
  }

  std::vector<std::string> flavors(std::string_view name) const override { return llama_flavors_of(name); }

  ModelDescription describe(const ModelRequest& request) const override {
    return describe_llama(request, llama_arguments(request));
  }

  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    return build_llama(llama_arguments(request), strategies);
  }

  RecomputePolicy policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks) const override {
    return llama_policy(selection, block, tensor_ranks);
  }

  const StateDictAdapter* adapter() const override { return &llama_adapter(); }

  std::vector<std::string> notes(const ModelRequest& request) const override {
    if (request.name != "llama3" || request.flavor == kCustomFlavor || request.rope_scaling != "default") return {};
    return {
        "model.name = \"llama3\" means no rotary scaling; torchtitan's last TOML release scaled every Llama 3 flavor "
        "as 3.1 does: for that, say model.name = \"llama3_1\" or model.rope_scaling = \"llama3_1\""};
  }
};

}  // namespace

ModelDescription describe_llama(const ModelRequest& request, const LlamaArguments& a) {
  ModelDescription model;
  model.name = request.name;
  model.flavor = request.flavor;
  model.dim = a.dim, model.layers = a.layers, model.heads = a.heads, model.kv_heads = a.kv_heads;
  model.head_dim = a.head_dim, model.vocabulary = a.vocabulary, model.max_sequence = a.max_sequence;
  model.block_causal = a.block_causal;
  model.vocabulary_is_tokenizers = a.vocabulary_is_tokenizers;
  const bool is_dynamic = a.rope_scaling && a.rope_scaling->kind == RotaryScaling::Kind::dynamic;
  model.longest_text = is_dynamic ? std::min(a.context, a.rope_scaling->original_context) : a.context;
  model.summary = fmt::format(
      "dim {}, {} layers, {} heads ({} for keys and values) of {}, hidden {}, vocabulary {}, rope theta {:g}, scaling "
      "{}{}{}",
      a.dim, a.layers, a.heads, a.kv_heads, a.head_dim, a.hidden, a.vocabulary, a.rope_theta,
      a.rope_scaling ? a.rope_scaling_name : "none", a.tied ? ", tied embeddings" : "",
      a.block_causal ? ", block-causal attention" : "");
  model.units.push_back(
      {"tok_embeddings", UnitRole::embedding, {llama_embedding_parameter(a)}, {}, [a](UnitTrace& trace) {
         trace.set_ends(kNoTensor, trace_embedding(trace, a.dim, trace.shape().trains("tok_embeddings.weight")));
       }});
  for (int64_t layer = 0; layer < a.layers; ++layer) {
    model.units.push_back({fmt::format("layers.{}", layer),
                           UnitRole::block,
                           llama_block_parameters(a, layer),
                           {},
                           [a, layer](UnitTrace& trace) { trace_llama_block(trace, a, layer); }});
  }
  std::vector<std::string> borrowed;
  if (a.tied) borrowed.push_back(llama_embedding_parameter(a).name);
  model.units.push_back({"head", UnitRole::head, llama_head_parameters(a), borrowed,
                         [a](UnitTrace& trace) { trace_llama_head(trace, a); }});
  return model;
}

std::unique_ptr<Model> build_llama(const LlamaArguments& arguments, const ModelStrategies& strategies) {
  return std::make_unique<LlamaModel>(arguments, strategies);
}

// Distributions as in torchtitan. A tied matrix is initialised like the output layer.
ParameterSpec llama_embedding_parameter(const LlamaArguments& a) {
  ParameterSpec spec = matrix("tok_embeddings.weight", a.vocabulary, a.dim, {Initialiser::Kind::normal, 1.0}, kRows);
  if (a.tied) {
    const double deviation = 1 / std::sqrt(static_cast<double>(a.dim));
    spec.initialiser = truncated(deviation, 3 * deviation);
  }
  return spec;
}

std::vector<ParameterSpec> llama_block_parameters(const LlamaArguments& a, int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  const double deep = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(layer + 1));
  const int64_t query = a.heads * a.head_dim;
  const int64_t key_value = a.kv_heads * a.head_dim;
  std::vector<ParameterSpec> specs{
      matrix(prefix + "attention.wq.weight", query, a.dim, truncated(kInitialDeviation), kRows),
      matrix(prefix + "attention.wk.weight", key_value, a.dim, truncated(kInitialDeviation), kRows),
      matrix(prefix + "attention.wv.weight", key_value, a.dim, truncated(kInitialDeviation), kRows),
      matrix(prefix + "attention.wo.weight", a.dim, query, truncated(deep), kColumns),
      matrix(prefix + "feed_forward.w1.weight", a.hidden, a.dim, truncated(kInitialDeviation), kRows),
      matrix(prefix + "feed_forward.w3.weight", a.hidden, a.dim, truncated(deep), kRows),
      matrix(prefix + "feed_forward.w2.weight", a.dim, a.hidden, truncated(deep), kColumns),
  };
  if (has_norm_weights(a)) {
    specs.push_back(norm_parameter(prefix + "attention_norm.weight", a));
    specs.push_back(norm_parameter(prefix + "ffn_norm.weight", a));
  }
  if (a.variant) {
    for (ParameterSpec& spec : a.variant->parameters(a, layer)) specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<ParameterSpec> llama_head_parameters(const LlamaArguments& a) {
  std::vector<ParameterSpec> specs;
  if (has_norm_weights(a)) specs.push_back(norm_parameter("norm.weight", a));
  if (!a.tied) {
    const double deviation = 1 / std::sqrt(static_cast<double>(a.dim));
    specs.push_back(matrix("output.weight", a.vocabulary, a.dim, truncated(deviation, 3 * deviation), kRows));
  }
  return specs;
}

const ModelFamily& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace titan
