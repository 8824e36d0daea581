// What each part of a training step should take on one H200: bytes and floating-point operations counted from the model
// and from the kernels' own traffic(), over rates that others measured on the card. Arithmetic only.
// docs/benchmarks/h200_expected.md is expected_times_page(): scripts/bench/expected.sh writes it, a test compares it.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "titan/kernels/kernels.h"
#include "titan/model/llama/llama.h"

namespace titan {

struct ExpectedPart {
  std::string name;
  int64_t launches = 0;
  double bytes = 0;       // read plus written, each address once a launch
  double operations = 0;  // floating-point
  double seconds = 0;     // of the whole step
};

// Rates of one H200, measured by others or published.
constexpr double kBf16Rate = 790e12;       // products, operations a second
constexpr double kFloat8Rate = 1450e12;    // the same in float8
constexpr double kAttentionRate = 450e12;  // causal attention at 8,192, forward and backward
constexpr double kCopyRate = 4.3e12;       // device memory, bytes read plus bytes written a second
constexpr double kKernelShare = 0.85;      // of it, that a fused kernel is to reach

/// One sequence of 8,192 tokens, no recompute, bf16 weights and moments; tensorwise float8 in the blocks' products.
class ExpectedStep {
 public:
  static constexpr int64_t kTokens = 8192;
  static constexpr int64_t kLossChunks = 8;

  ExpectedStep(const LlamaArguments& arguments, bool float8) : a_(arguments), float8_(float8) {
    count_products();
    count_elementwise();
    if (float8_) count_casts();
    count_optimizer();
  }

  const std::vector<ExpectedPart>& parts() const { return parts_; }
  double seconds() const {
    double sum = 0;
    for (const ExpectedPart& part : parts_) sum += part.seconds;
    return sum;
  }
  double tokens_per_second() const { return kTokens / seconds(); }

  /// Weights of one block's products.
  int64_t block_weights() const {
    return a_.dim * (2 * a_.dim + 2 * a_.kv_heads * a_.head_dim) + 3 * a_.dim * a_.hidden;
  }
  int64_t parameters() const {
    const int64_t ends = a_.vocabulary * a_.dim * (a_.tied ? 1 : 2) + a_.dim;
    return a_.layers * (block_weights() + 2 * a_.dim) + ends;
  }

 private:
  void moved(const std::string& name, int64_t launches, const KernelTraffic& each) {
    const double bytes = static_cast<double>(launches * each.bytes());
    parts_.push_back({name, launches, bytes, 0, bytes / (kCopyRate * kKernelShare)});
  }
  void computed(const std::string& name, int64_t launches, double operations, double rate) {
    parts_.push_back({name, launches, 0, operations, operations / rate});
  }

  // A product of [N, in] and [in, out] takes 2·N·in·out operations, and its two gradients as many each. Causal
  // attention computes half of T²: 2·T²·dim forward for both of its products, and, as the rate counts, twice that
  // backward.
  void count_products() {
    const double tokens = kTokens;
    computed("products of the blocks", a_.layers * 7 * 3, 6 * tokens * static_cast<double>(a_.layers * block_weights()),
             float8_ ? kFloat8Rate : kBf16Rate);
    computed("output product", kLossChunks * 3, 6 * tokens * static_cast<double>(a_.vocabulary * a_.dim), kBf16Rate);
    computed("attention", a_.layers * 2, 3 * 2 * tokens * tokens * static_cast<double>(a_.dim * a_.layers),
             kAttentionRate);
  }

  void count_elementwise() {
    const KernelType type = KernelType::bf16;
    RmsNormForward forward;
    forward.type = type;
    forward.rows = kTokens;
    forward.columns = a_.dim;
    moved("RMS norm, forward", a_.layers + 1, traffic(forward));
    forward.delta = &forward;  // any address
    moved("residual add and RMS norm, forward", a_.layers, traffic(forward));
    RmsNormBackward backward;
    float somewhere = 0;
    backward.type = type;
    backward.rows = kTokens;
    backward.columns = a_.dim;
    backward.d_residual = &somewhere;
    backward.partials = &somewhere;
    moved("RMS norm and residual, backward", 2 * a_.layers + 1, traffic(backward));
    const int64_t stream = kTokens * a_.dim * bytes_of(type);
    moved("closing residual add (LibTorch)", a_.layers, {2 * stream, stream, 0});
    // In bf16 a product adds to the one before it; LibTorch's float8 products cannot.
    if (float8_) moved("sums of inputs' gradients (LibTorch)", 3 * a_.layers, {2 * stream, stream, 0});
    RotaryTurn rotation;
    rotation.type = type;
    rotation.tokens = rotation.length = kTokens;
    rotation.head_dim = a_.head_dim;
    rotation.query_heads = a_.heads;
    rotation.key_heads = a_.kv_heads;
    rotation.query = rotation.key = &somewhere;
    moved("rotary embedding, both ways", 2 * a_.layers, traffic(rotation));
    SwigluForward swiglu;
    swiglu.type = type;
    swiglu.count = kTokens * a_.hidden;
    moved("SwiGLU, forward", a_.layers, traffic(swiglu));
    SwigluBackward swiglu_backward;
    swiglu_backward.type = type;
    swiglu_backward.count = swiglu.count;
    moved("SwiGLU, backward", a_.layers, traffic(swiglu_backward));
    CrossEntropyRows rows;
    rows.type = type;
    rows.rows = kTokens / kLossChunks;
    rows.words = a_.vocabulary;
    moved("cross-entropy and its gradient", kLossChunks, traffic(rows, rows.rows));
    moved("embedding, forward (LibTorch)", 1, {stream, stream, 0});
    // The output layer's gradient is there when the two share a matrix.
    if (!a_.tied) moved("zeros of the embedding's gradient", 1, {0, 4 * a_.vocabulary * a_.dim, 0});
    EmbeddingGradient embedding;
    embedding.type = type;
    embedding.tokens = kTokens;
    embedding.columns = a_.dim;
    moved("embedding, backward", 1, traffic(embedding, kTokens, kTokens));  // as if no word came twice
  }

  // Every operand of a product is cast for its two uses at once: inputs and output gradients of this sequence, weights
  // once a step; but attention's output, which is kept in bf16, in forward and again in backward. Amaxes of what our
  // own kernels write are known, those of the gradients of queries and keys among them; amaxes of weights, of
  // attention's output and of the values' gradient take a kernel of their own.
  void count_casts() {
    const int64_t kv = a_.kv_heads * a_.head_dim;
    const int64_t inputs = kTokens * (2 * a_.dim + a_.hidden);
    const int64_t gradients = kTokens * (3 * a_.dim + 2 * kv + 2 * a_.hidden);
    uint8_t somewhere = 0;
    Float8Cast both;
    both.type = KernelType::bf16;
    both.rows = inputs + gradients + block_weights();
    both.columns = 1;
    both.data = both.transposed = &somewhere;
    Float8Cast one = both;
    one.rows = kTokens * a_.dim;
    one.transposed = nullptr;
    const KernelTraffic once = traffic(both), again = traffic(one);
    add({once.read + 2 * again.read, once.written + 2 * again.written, 0}, "casts and transposes",
        a_.layers * (3 + 2 + 7 + 7));
    const int64_t searched = block_weights() + kTokens * (a_.dim + kv);
    Amax search;
    search.type = KernelType::bf16;
    search.rows = searched;
    search.columns = 1;
    add(traffic(search), "amaxes of weights and of attention's", a_.layers * (7 + 2));
  }
  /// `each_block` bytes in a number of launches.
  void add(const KernelTraffic& each_block, const std::string& name, int64_t launches) {
    moved(name, a_.layers, each_block);
    parts_.back().launches = launches;
  }

  // AdamW over bf16 weights, bf16 moments and fp32 gradients: 10 bytes in and 6 out a parameter, as its kernel states.
  void count_optimizer() {
    const int64_t ends = a_.tied ? 1 : 2;  // embedding and output; the last norm is beside the output
    moved("gradient norm", a_.layers + ends, {4 * parameters() / (a_.layers + ends), 0, 0});
    moved("AdamW with stochastic rounding", 1, {10 * parameters(), 6 * parameters(), 0});
    parts_.back().launches = a_.layers * 9 + ends + 1;
  }

  LlamaArguments a_;
  bool float8_;
  std::vector<ExpectedPart> parts_;
};

inline LlamaArguments arguments_of(const std::string& name, const std::string& flavor) {
  ModelRequest request;
  request.name = name;
  request.flavor = flavor;
  request.tokenizer_vocabulary = 128256;
  request.sequence_length = ExpectedStep::kTokens;
  return llama_arguments(request);
}

inline std::string expected_times_page() {
  std::string page = fmt::format(
      R"(# What a step should take on one H200

Written by `scripts/bench/expected.sh`, and compared with its output by a test: nothing here was measured by this project.
Every number is counted bytes or floating-point operations over a rate that others measured on the card, so that the
first run on one can be held against it, part by part.

| rate | |
|---|---:|
| products in bf16 | {:.0f} TFLOP/s |
| products in float8 | {:.0f} TFLOP/s |
| causal attention at 8,192, forward and backward | {:.0f} TFLOP/s |
| copying device memory, read plus written | {:.1f} TB/s |
| what a fused kernel is to reach of that | {:.0f} % |

A step here is one sequence of 8,192 tokens and an optimizer step over bf16 weights and moments, nothing recomputed.
Launches, which for 8B are those of a step on the [mock GPU](../gpu.md#the-mock-gpu), follow each other without gaps, and nothing
overlaps. Bytes are those that the kernels' headers state and the
tests on the host count; a weight's 16 KB that a cache serves again are left out.
)",
      kBf16Rate / 1e12, kFloat8Rate / 1e12, kAttentionRate / 1e12, kCopyRate / 1e12, kKernelShare * 100);
  struct Model {
    const char *shown, *name, *flavor;
  };
  const Model models[] = {
      {"Llama 3.1 8B", "llama3_1", "8B"}, {"Llama 3.2 3B", "llama3_2", "3B"}, {"Llama 3.2 1B", "llama3_2", "1B"}};
  page +=
      "\n| model | bf16, tokens/s | ms a step | float8, tokens/s | ms a step | float8 over bf16 "
      "|\n|---|---:|---:|---:|---:|---:|\n";
  for (const Model& model : models) {
    const ExpectedStep bf16(arguments_of(model.name, model.flavor), false);
    const ExpectedStep float8(arguments_of(model.name, model.flavor), true);
    page += fmt::format("| {} | {:.0f} | {:.1f} | {:.0f} | {:.1f} | {:.2f} |\n", model.shown, bf16.tokens_per_second(),
                        bf16.seconds() * 1e3, float8.tokens_per_second(), float8.seconds() * 1e3,
                        bf16.seconds() / float8.seconds());
  }
  for (const Model& model : models) {
    for (bool float8 : {false, true}) {
      const ExpectedStep step(arguments_of(model.name, model.flavor), float8);
      page += fmt::format("\n## {}, {}\n\n", model.shown, float8 ? "float8" : "bf16");
      page += "| part | launches | GB | TFLOP | ms | share |\n|---|---:|---:|---:|---:|---:|\n";
      for (const ExpectedPart& part : step.parts()) {
        const auto amount = [](double value) { return value > 0 ? fmt::format("{:.2f}", value) : std::string(); };
        page += fmt::format("| {} | {} | {} | {} | {:.2f} | {:.1f} % |\n", part.name, part.launches,
                            amount(part.bytes / 1e9), amount(part.operations / 1e12), part.seconds * 1e3,
                            100 * part.seconds / step.seconds());
      }
      page += fmt::format("| all | | | | {:.2f} | |\n", step.seconds() * 1e3);
    }
  }
  return page;
}

}  // namespace titan
