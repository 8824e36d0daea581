// Text generation: reads tokens with the executor's evaluation program and a KV cache, and samples the next token from
// the last logits. All ranks of the run make the same calls and get the same tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/job/generation.h"
#include "titan/ops/key_value_cache.h"
#include "titan/report/step_report.h"
#include "titan/text/tokenizer.h"
#include "titan/train/run.h"

namespace titan {

/// The next token of a sample: a pure function of the `logits` [V], the tokens `seen`, and (seed, sample, number of
/// tokens seen). Filters apply in transformers' order: penalty, temperature, top k, top p. Ties: the lower id.
int32_t next_token(std::span<const float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                   int64_t sample);

struct GeneratedText {
  std::vector<int32_t> tokens;            // after the prompt
  std::vector<double> log_probabilities;  // of each token under the model, at temperature 1
  std::string text;                       // of the tokens, up to the stop
  enum class End { length, token, text } end = End::length;
  double first_seconds = 0, seconds = 0;  // until the first token of the batch, and until the last
};

class Generator {
 public:
  /// Generates `samples` parallel texts of at most `context` tokens each. Without `cached` all tokens are read again
  /// for each new one.
  Generator(const Run& run, int64_t samples, int64_t context, bool cached = true);

  /// Appends each sample's tokens (at least one) to those it has read. Returns the logits of its last token, fp32
  /// [samples, V] on the CPU. For samples that have `ended`, the tokens are padding.
  at::Tensor read(const std::vector<std::vector<int32_t>>& tokens, const std::vector<bool>& ended = {});

  /// Reads the prompts and continues each until it ends. `on_text` receives the text added to a sample (whole
  /// characters). A sample's next prompt continues its text. Throws Error(bad_data) for prompts that are empty or fill
  /// the context.
  std::vector<GeneratedText> generate(const std::vector<std::vector<int32_t>>& prompts,
                                      const GenerationOptions& options, const Tokenizer& tokenizer,
                                      const std::function<void(size_t sample, const std::string& text)>& on_text = {});

  /// All tokens that a sample has read.
  const std::vector<int32_t>& tokens(size_t sample) const { return tokens_[sample]; }
  int64_t context() const { return context_; }
  /// Whether a signal to any rank ended the last `generate` early.
  bool was_stopped() const { return stopped_; }

 private:
  BatchContext batch_of(const std::vector<std::vector<int32_t>>& tokens, const std::vector<int64_t>& first) const;
  /// Rank 0's tokens, on all ranks, and whether any of them was stopped.
  std::vector<int32_t> agreed(std::vector<int32_t> tokens);

  const Run& run_;
  int64_t samples_;
  int64_t rows_;  // of a batch; a multiple that tensor-parallel ranks can split evenly
  int64_t context_;
  std::unique_ptr<KeyValueCache> cache_;  // null: uncached
  std::vector<std::vector<int32_t>> tokens_;
  bool stopped_ = false;
};

/// Throws Error(bad_config) if the run cannot generate the texts of metrics.sample_freq.
void check_samples(const Run& run);
/// Collective: generates the texts of `metrics.sample_*` after `step` steps; nothing if a signal stops it.
std::optional<SampleReport> write_sample(const Run& run, int64_t step);

}  // namespace titan
