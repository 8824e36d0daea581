// Text from a model: tokens are read through the executor's logits walk, with a cache of keys and values, and the next
// one is chosen from the logits of the last. Every rank of the run makes the same calls and gets the same tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/data/tokenizer.h"
#include "titan/ops/key_value_cache.h"
#include "titan/report/step_report.h"
#include "titan/train/run.h"

namespace titan {

struct SamplingOptions {
  double temperature = 0;         // of the softmax; 0: the token with the largest logit
  int64_t top_k = 0;              // only the k likeliest tokens; 0: all
  double top_p = 1;               // only the likeliest tokens that together have this probability
  double repetition_penalty = 1;  // logits of tokens that were there: divided by this if positive, or multiplied
  uint64_t seed = 0;
};

/// The next token of a sample: a pure function of the `logits` [V], what is `seen`, and (seed, sample, number of tokens
/// seen). Filters apply in transformers' order: penalty, temperature, top k, top p. Equal logits: the lower id.
int32_t next_token(std::span<const float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                   int64_t sample);

struct GenerationOptions {
  SamplingOptions sampling = {};
  int64_t max_new_tokens = 256;
  std::vector<int32_t> stop_ids = {};        // end a text and are not part of it
  std::vector<std::string> stop_texts = {};  // likewise, wherever they appear in what was generated
};

struct GeneratedText {
  std::vector<int32_t> tokens;            // behind the prompt
  std::vector<double> log_probabilities;  // of each of them under the model, at temperature 1
  std::string text;                       // theirs, up to what stopped it
  enum class End { length, token, text } end = End::length;
  double first_seconds = 0, seconds = 0;  // to the first token of the batch, and to the last
};

class Generator {
 public:
  /// Of `samples` texts side by side, each of at most `context` tokens. Without `cached` all tokens are read again for
  /// each new one. Throws Error(bad_config) under context parallelism.
  Generator(const Run& run, int64_t samples, int64_t context, bool cached = true);

  /// Appends each sample's tokens, which may not be empty, to what it has read. → the logits of its last one, fp32
  /// [samples, V] on the CPU. A sample that has `ended` reads them for nothing.
  at::Tensor read(const std::vector<std::vector<int32_t>>& tokens, const std::vector<bool>& ended = {});

  /// Reads the prompts and continues each until it ends. `on_text` is called with what came to a sample's text (whole
  /// characters). A sample's next prompt continues its text. Throws Error(bad_data) for prompts that are empty or leave
  /// no room in the context.
  std::vector<GeneratedText> generate(const std::vector<std::vector<int32_t>>& prompts,
                                      const GenerationOptions& options, const Tokenizer& tokenizer,
                                      const std::function<void(size_t sample, const std::string& text)>& on_text = {});

  /// What a sample has read so far.
  const std::vector<int32_t>& tokens(size_t sample) const { return tokens_[sample]; }
  int64_t context() const { return context_; }

 private:
  BatchContext batch_of(const std::vector<std::vector<int32_t>>& tokens, const std::vector<int64_t>& first) const;
  /// Those that rank 0 chose.
  std::vector<int32_t> agreed(std::vector<int32_t> tokens) const;

  const Run& run_;
  int64_t samples_;
  int64_t rows_;  // of a batch: tensor-parallel ranks share its tokens evenly
  int64_t context_;
  std::unique_ptr<KeyValueCache> cache_;  // null: uncached
  std::vector<std::vector<int32_t>> tokens_;
};

/// Throws Error(bad_config) if the run cannot write the texts of metrics.sample_freq.
void check_samples(const Run& run);
/// Collective: generates the texts of `metrics.sample_*` after `step` steps.
SampleReport write_sample(const Run& run, int64_t step);

}  // namespace titan
