#include "titan/plan/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace titan {
namespace {

constexpr double kInitialDeviation = 0.02;  // torchtitan's, like all distributions here

Initialiser truncated(double deviation, double bound = 2.0) {
  return {Initialiser::Kind::truncated_normal, deviation, -bound, bound};
}

/// A matrix; tensor parallelism shards its outputs (rows: dimension 0) or its inputs (columns: 1).
ParameterSpec matrix(std::string name, int64_t rows, int64_t columns, Initialiser initialiser, int64_t cut) {
  return {std::move(name), {rows, columns}, initialiser, true, {{MeshAxis::tp, cut}}};
}
constexpr int64_t kRows = 0;
constexpr int64_t kColumns = 1;

ParameterSpec norm_parameter(const std::string& name, const LlamaArguments& arguments) {
  return {name, {arguments.dim}, {}};
}

bool has_norm_weights(const LlamaArguments& arguments) { return arguments.norm != NormType::np_layernorm; }

class LlamaArchitecture : public Architecture {
 public:
  std::vector<std::string> names() const override {
    return {"llama2", "llama3", "llama3_1", "llama3_2", "llama", "mistral"};
  }

  std::vector<std::string> flavors(std::string_view name) const override { return llama_flavors_of(name); }

  ModelDescription describe(const ModelRequest& request) const override {
    return describe_llama(request, llama_arguments(request));
  }

  std::vector<std::string> notes(const ModelRequest& request) const override {
    if (request.model.name != "llama3" || request.model.flavor == kCustomFlavor ||
        request.model.rope_scaling != "default")
      return {};
    return {
        "model.name = \"llama3\" means no rotary scaling; torchtitan's last TOML release scaled every Llama 3 flavor "
        "as 3.1 does: for that, say model.name = \"llama3_1\" or model.rope_scaling = \"llama3_1\""};
  }
};

}  // namespace

ModelDescription describe_llama(const ModelRequest& request, const LlamaArguments& a) {
  ModelDescription model;
  model.name = request.model.name;
  model.flavor = request.model.flavor;
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
         trace.set_ends({}, {trace_embedding(trace, a.dim, trace.shape().trains("tok_embeddings.weight"))});
       }});
  for (int64_t layer = 0; layer < a.layers; ++layer) {
    model.units.push_back({fmt::format("layers.{}", layer),
                           UnitRole::block,
                           llama_block_parameters(a, layer),
                           {},
                           [a, layer](UnitTrace& trace) { trace_llama_block(trace, a, layer); },
                           [layer, reads = a.variant && a.variant->reads_products()](
                               const RecomputeSelection& selection, int64_t tensor_ranks) {
                             return llama_policy(selection, layer, tensor_ranks, reads);
                           }});
  }
  for (UnitDescription& unit : model.units) unit.hands_on = {{"residual stream", a.dim}};
  std::vector<std::string> borrowed;
  if (a.tied) borrowed.push_back(llama_embedding_parameter(a).name);
  model.units.push_back({"head", UnitRole::head, llama_head_parameters(a), borrowed,
                         [a](UnitTrace& trace) { trace_llama_head(trace, a); }});
  return model;
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

void trace_llama_block(UnitTrace& trace, const LlamaArguments& a, int64_t layer) {
  const TraceShape& shape = trace.shape();
  auto weight = [&](const char* name, int64_t outputs) {
    return TracedWeight{fmt::format("layers.{}.{}.weight", layer, name), outputs};
  };
  const int64_t query = a.heads * a.head_dim, key_value = a.kv_heads * a.head_dim;
  const TracedTensor input = trace.tensor(shape.tokens() / shape.tensor_ranks * a.dim * shape.element_size);
  const auto [x, normed_x] = trace_norm(trace, a.norm, input, kNoTensor, a.dim, 0);
  std::vector<TracedTensor> qkv = trace_linear(
      trace, normed_x, a.dim,
      {weight("attention.wq", query), weight("attention.wk", key_value), weight("attention.wv", key_value)}, 0,
      LinearSplit::input, /*reads_alone=*/true, /*copied_gradients=*/a.variant ? -1 : key_value);
  if (a.variant) a.variant->trace(trace, qkv, a);
  const auto [turned_query, turned_key] = trace_rotate(trace, qkv[0], qkv[1]);
  const TracedTensor attended = trace_attention(trace, turned_query, turned_key, qkv[2], a.head_dim);
  const TracedTensor delta = trace_linear(trace, attended, query, {weight("attention.wo", a.dim)}, 3,
                                          LinearSplit::output, /*reads_alone=*/false)[0];
  const auto [h, normed_h] = trace_norm(trace, a.norm, x, delta, a.dim, 1);
  const std::vector<TracedTensor> gate_up =
      trace_linear(trace, normed_h, a.dim, {weight("feed_forward.w1", a.hidden), weight("feed_forward.w3", a.hidden)},
                   4, LinearSplit::input, /*reads_alone=*/true, /*copied_gradients=*/0);
  const TracedTensor activated = trace_swiglu(trace, gate_up[0], gate_up[1]);
  const TracedTensor down =
      trace_linear(trace, activated, a.hidden, {weight("feed_forward.w2", a.dim)}, 6, LinearSplit::output)[0];
  trace.set_ends({input}, {trace_closing(trace, h, down)});
}

void trace_llama_head(UnitTrace& trace, const LlamaArguments& a) {
  const TraceShape& shape = trace.shape();
  const TracedTensor input = trace.tensor(shape.tokens() / shape.tensor_ranks * a.dim * shape.element_size);
  const TracedTensor normed = trace_norm(trace, a.norm, input, kNoTensor, a.dim, 0).normed;
  trace_cross_entropy(trace, normed, a.dim, a.vocabulary,
                      shape.trains(a.tied ? "tok_embeddings.weight" : "output.weight"));
  trace.set_ends({input}, {});
}

const Architecture& llama_architecture() {
  static const LlamaArchitecture architecture;
  return architecture;
}

}  // namespace titan
