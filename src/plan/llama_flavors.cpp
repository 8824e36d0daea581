#include <algorithm>
#include <array>
#include <cmath>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/plan/llama.h"

namespace titan {
namespace {

// family, flavor, dim, layers, heads, kv heads, ffn multiplier, multiple of, rope theta, vocabulary, tied,
// block-causal, hidden, head size, norm epsilon. Llama 3.1 has the rows of Llama 3.
constexpr auto kFlavors = std::to_array<LlamaFlavor>({
    {"llama2", "debugmodel", 256, 8, 16, 16, 0, 256, 1e4, 0},
    {"llama2", "271M", 1024, 16, 8, 8, 0, 256, 1e4, 32000},
    {"llama2", "1B", 2048, 18, 16, 16, 0, 256, 1e4, 32000},
    {"llama2", "7B", 4096, 32, 32, 32, 0, 256, 1e4, 32000},
    {"llama2", "13B", 5120, 40, 40, 40, 0, 256, 1e4, 32000},
    {"llama2", "26B", 5120, 80, 40, 40, 0, 256, 1e4, 32000},
    {"llama2", "34B", 8192, 48, 64, 8, 1.0, 256, 1e6, 32000},
    {"llama2", "70B", 8192, 80, 64, 8, 1.3, 4096, 1e4, 32000},
    {"llama3", "debugmodel", 256, 6, 16, 16, 0, 256, 5e5, -2048},
    {"llama3", "debugmodel_d24", 256, 8, 16, 16, 0, 256, 5e5, 0},
    {"llama3", "debugmodel_flex_attn", 256, 6, 16, 16, 0, 256, 5e5, -2048, false, true},
    {"llama3", "debugmodel_varlen_attn", 256, 6, 16, 16, 0, 256, 5e5, -2048, false, true},
    {"llama3", "8B", 4096, 32, 32, 8, 1.3, 1024, 5e5, 128256},
    {"llama3", "8B_flex", 4096, 32, 32, 8, 1.3, 1024, 5e5, 128256, false, true},
    {"llama3", "8B_varlen", 4096, 32, 32, 8, 1.3, 1024, 5e5, 128256, false, true},
    {"llama3", "70B", 8192, 80, 64, 8, 1.3, 4096, 5e5, 128256},
    {"llama3", "405B", 16384, 126, 128, 8, 1.2, 4096, 5e5, 128256},
    {"llama3_2", "1B", 2048, 16, 32, 8, 1.5, 256, 5e5, 128256, true},
    {"llama3_2", "3B", 3072, 28, 24, 8, 1.0, 256, 5e5, 128256, true},
    {"qwen3", "0.6B", 1024, 28, 16, 8, 0, 1, 1e6, 151936, true, false, 3072, 128, 1e-6},
    {"qwen3", "1.7B", 2048, 28, 16, 8, 0, 1, 1e6, 151936, true, false, 6144, 128, 1e-6},
    {"qwen3", "4B", 2560, 36, 32, 8, 0, 1, 1e6, 151936, true, false, 9728, 128, 1e-6},
    {"qwen3", "8B", 4096, 36, 32, 8, 0, 1, 1e6, 151936, false, false, 12288, 128, 1e-6},
    {"qwen3", "14B", 5120, 40, 40, 8, 0, 1, 1e6, 151936, false, false, 17408, 128, 1e-6},
    {"qwen3", "32B", 5120, 64, 64, 8, 0, 1, 1e6, 151936, false, false, 25600, 128, 1e-6},
});

std::string_view table_family(std::string_view name) { return name == "llama3_1" ? "llama3" : name; }

// All sizes are given by options. The rotary base is that of the first Llama, which transformers takes for a model
// whose config names none.
constexpr LlamaFlavor kCustom{"", kCustomFlavor, 0, 0, 0, 0, 0, 1, 1e4, 0};

const LlamaFlavor& find_flavor(const ModelRequest& request) {
  if (request.model.flavor == kCustomFlavor) return kCustom;
  std::vector<std::string> known;
  for (const LlamaFlavor& flavor : llama_flavors()) {
    if (flavor.family != table_family(request.model.name)) continue;
    if (flavor.name == request.model.flavor) return flavor;
    known.emplace_back(flavor.name);
  }
  std::vector<std::string> best = nearest(request.model.flavor, known, 1);
  known.emplace_back(kCustomFlavor);
  throw Error(ExitCode::bad_config,
              fmt::format("model.flavor = \"{}\" is not a flavor of {}{}; there are: {}", request.model.flavor,
                          request.model.name, best.empty() ? "" : fmt::format("; did you mean \"{}\"?", best[0]),
                          join(known, ", ")));
}

std::optional<RotaryScaling> scaling_named(std::string_view name) {
  using Kind = RotaryScaling::Kind;
  if (name == "llama3_1") return RotaryScaling{Kind::llama3, 8, 1, 4, 8192};
  if (name == "llama3_2") return RotaryScaling{Kind::llama3, 32, 1, 4, 8192};
  if (name == "linear") return RotaryScaling{.kind = Kind::linear};
  if (name == "dynamic") return RotaryScaling{.kind = Kind::dynamic, .original_context = 8192};
  if (name == "yarn") return RotaryScaling{Kind::yarn, 0, 0, 0, 8192, 32, 1};
  return std::nullopt;
}

/// Replaces fields of the named scaling by those that the request gives.
RotaryScaling scaling_of(RotaryScaling scaling, const ModelRequest& request) {
  const RotaryScaling& given = request.model.override_sizes.rope;
  visit_rotary_numbers(scaling.kind, [&](const char*, const char*, auto number) {
    if (given.*number > 0) scaling.*number = given.*number;
  });
  if (scaling.factor < 1) {
    throw Error(ExitCode::bad_config,
                fmt::format("model.rope_scaling = \"{}\" needs a factor of at least 1 in model.override.rope_factor",
                            request.model.rope_scaling));
  }
  if (scaling.kind == RotaryScaling::Kind::llama3 && scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw Error(ExitCode::bad_config, "model.override.rope_high_freq_factor must be above rope_low_freq_factor");
  }
  if (scaling.attention_factor == 0) scaling.attention_factor = 0.1 * std::log(scaling.factor) + 1;
  return scaling;
}

/// The context length on which the published models were trained; for Llama 2 34B, Code Llama's.
int64_t published_context(const ModelRequest& request) {
  if (request.model.name == "qwen3" && request.model.flavor != kCustomFlavor) return 40960;
  if (request.model.name != "llama2" || request.model.flavor == kCustomFlavor) return 131072;
  return request.model.flavor == "34B" ? 16384 : 4096;
}

void check_sizes(const LlamaArguments& a, const ModelRequest& request) {
  auto fail = [&](const std::string& what) {
    throw Error(ExitCode::bad_config, fmt::format("model {} {}: {}", request.model.name, request.model.flavor, what));
  };
  const std::array<std::pair<const char*, int64_t>, 4> needed{
      {{"dim", a.dim}, {"n_layers", a.layers}, {"n_heads", a.heads}, {"hidden_dim", a.hidden}}};
  std::vector<std::string> missing;
  for (const auto& [size, value] : needed) {
    if (value == 0) missing.push_back(fmt::format("model.override.{}", size));
  }
  if (!missing.empty()) {
    fail(
        fmt::format("this flavor has no sizes of its own; give {}, or name a Hugging Face model's folder in "
                    "model.from_hf",
                    join(missing, ", ")));
  }
  if (request.model.override_sizes.head_dim == 0 && a.dim % a.heads != 0)
    fail(fmt::format("dim = {} is not a multiple of n_heads = {}", a.dim, a.heads));
  if (a.heads % a.kv_heads != 0) {
    fail(fmt::format("n_heads = {} is not a multiple of n_kv_heads = {}", a.heads, a.kv_heads));
  }
  if (a.head_dim % 2 != 0) fail(fmt::format("head size {} is odd; rotary embedding turns pairs", a.head_dim));
  if (a.vocabulary < request.tokenizer_vocabulary) {
    fail(fmt::format(
        "the tokenizer has {} tokens, more than the model's vocabulary of {}; choose a tokenizer that fits with "
        "model.tokenizer_path, or a larger vocabulary with model.override.vocab_size or another flavor",
        request.tokenizer_vocabulary, a.vocabulary));
  }
  if (request.sequence_length > a.context) {
    fail(
        fmt::format("training.seq_len = {} is beyond the model's context of {} tokens; shorten it, or set "
                    "model.max_seq_len to train beyond",
                    request.sequence_length, a.context));
  }
  if (a.vocabulary < 1) fail("its vocabulary is the tokenizer's, and no tokenizer was given");
}

}  // namespace

std::span<const LlamaFlavor> llama_flavors() { return kFlavors; }

std::vector<std::string> llama_flavors_of(std::string_view name) {
  std::vector<std::string> result;
  for (const LlamaFlavor& flavor : kFlavors) {
    if (flavor.family == table_family(name)) result.emplace_back(flavor.name);
  }
  return result;
}

int64_t llama_hidden_size(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t hidden = 8 * dim / 3;
  if (multiplier > 0) hidden = static_cast<int64_t>(multiplier * static_cast<double>(hidden));
  return multiple_of * ((hidden + multiple_of - 1) / multiple_of);
}

LlamaArguments llama_arguments(const ModelRequest& request) {
  const LlamaFlavor& flavor = find_flavor(request);
  auto pick = [](int64_t wanted, int64_t usual) { return wanted > 0 ? wanted : usual; };
  LlamaArguments a;
  a.dim = pick(request.model.override_sizes.dim, flavor.dim);
  a.layers = pick(request.model.override_sizes.n_layers, flavor.layers);
  a.heads = pick(request.model.override_sizes.n_heads, flavor.heads);
  a.kv_heads = pick(request.model.override_sizes.n_kv_heads,
                    request.model.override_sizes.n_heads > 0 ? a.heads : flavor.kv_heads);
  const bool keeps_heads =
      flavor.head_dim > 0 && request.model.override_sizes.n_heads == 0 && request.model.override_sizes.dim == 0;
  a.head_dim = pick(request.model.override_sizes.head_dim,
                    keeps_heads ? flavor.head_dim : a.dim / std::max<int64_t>(1, a.heads));
  const bool derives_hidden = flavor.dim > 0 || request.model.override_sizes.multiple_of > 0;
  const int64_t multiple_of = pick(request.model.override_sizes.multiple_of, flavor.multiple_of);
  const int64_t derived = derives_hidden ? llama_hidden_size(a.dim, flavor.ffn_multiplier, multiple_of) : 0;
  const bool keeps_hidden =
      flavor.hidden > 0 && request.model.override_sizes.dim == 0 && request.model.override_sizes.multiple_of == 0;
  a.hidden = pick(request.model.override_sizes.hidden_dim, keeps_hidden ? flavor.hidden : derived);
  int64_t usual =
      flavor.vocabulary > 0 ? flavor.vocabulary : std::max(-flavor.vocabulary, request.tokenizer_vocabulary);
  a.vocabulary = pick(request.model.override_sizes.vocab_size, usual);
  a.vocabulary_is_tokenizers = request.model.override_sizes.vocab_size <= 0 && flavor.vocabulary <= 0;
  a.max_sequence = request.sequence_length;
  a.context = request.model.max_seq_len > 0 ? request.model.max_seq_len : published_context(request);
  a.rope_theta =
      request.model.override_sizes.rope_theta > 0 ? request.model.override_sizes.rope_theta : flavor.rope_theta;
  if (flavor.norm_epsilon > 0) a.norm_epsilon = flavor.norm_epsilon;
  if (request.model.override_sizes.norm_eps > 0) a.norm_epsilon = request.model.override_sizes.norm_eps;
  a.rope_scaling_name = request.model.rope_scaling == "default" ? request.model.name : request.model.rope_scaling;
  a.rope_scaling = scaling_named(a.rope_scaling_name);
  if (a.rope_scaling) a.rope_scaling = scaling_of(*a.rope_scaling, request);
  a.norm = request.model.norm_type;
  const std::string& embeddings = request.model.override_sizes.embeddings;
  a.tied = embeddings == "tied" || (embeddings != "untied" && flavor.tied);
  a.block_causal = flavor.block_causal || request.block_causal;
  check_sizes(a, request);
  return a;
}

}  // namespace titan
