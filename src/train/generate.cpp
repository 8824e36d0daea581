#include "titan/train/generate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/stop_signals.h"
#include "titan/job/job.h"
#include "titan/stream/batch_stream.h"
#include "titan/text/chat.h"
#include "titan/train/open_data.h"

namespace titan {
namespace {

struct Candidate {
  int32_t token;
  double weight;  // logit, then unnormalised probability
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

/// The text of `tokens`, and the length of its prefix that later tokens cannot change: incomplete characters and
/// byte tokens at the end are not part of it.
struct DecodedText {
  std::string text;
  size_t stable = 0;
};

/// A byte token of a SentencePiece tokenizer: "<0x0A>".
bool is_byte(const Tokenizer& tokenizer, int32_t token) {
  const std::string name = tokenizer.token_name(token);
  return name.size() == 6 && name.starts_with("<0x") && name.ends_with(">");
}

DecodedText decode(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  DecodedText decoded{tokenizer.decode(tokens), 0};
  size_t settled = tokens.size();
  while (settled > 0 && is_byte(tokenizer, tokens[settled - 1])) --settled;
  std::string_view whole = decoded.text;
  if (settled < tokens.size()) whole = whole.substr(0, tokenizer.decode(tokens.first(settled)).size());
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (whole.ends_with(kReplacement)) whole.remove_suffix(kReplacement.size());
  decoded.stable = whole.size();
  return decoded;
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(token)] - largest - std::log(sum);
}

/// One sample during generation.
class GrowingText {
 public:
  GrowingText(const Tokenizer& tokenizer, std::vector<int32_t> prompt, const GenerationOptions& options)
      : tokenizer_(tokenizer), options_(options), all_(std::move(prompt)), prompt_(all_.size()) {
    before_ = tokenizer.decode(all_).size();
    for (const std::string& stop : options.stop_texts) longest_stop_ = std::max(longest_stop_, stop.size());
  }

  bool ended() const { return ended_; }
  const std::vector<int32_t>& all() const { return all_; }

  /// Appends a token that was chosen from these logits; returns the new text. The sample ends when `context` is full.
  std::string add(int32_t token, std::span<const float> logits, int64_t context) {
    if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) != options_.stop_ids.end()) {
      result_.end = GeneratedText::End::token;
      return finish();
    }
    all_.push_back(token);
    result_.log_probabilities.push_back(log_probability(logits, token));
    const DecodedText decoded = decode(tokenizer_, all_);
    result_.text = decoded.text.size() > before_ ? decoded.text.substr(before_) : std::string();
    const size_t stable = decoded.stable > before_ ? decoded.stable - before_ : 0;
    for (const std::string& stop : options_.stop_texts) {
      const size_t from = shown_ > stop.size() ? shown_ - stop.size() : 0;
      const size_t at = result_.text.find(stop, from);
      if (at == std::string::npos) continue;
      result_.text.resize(at);
      result_.end = GeneratedText::End::text;
      ended_ = true;
    }
    const int64_t made = std::ssize(all_) - static_cast<int64_t>(prompt_);
    if (ended_ || made == options_.max_new_tokens || std::ssize(all_) == context) return finish();
    // Hold back text that may be the beginning of a stop text.
    const size_t held = longest_stop_ > 0 ? longest_stop_ - 1 : 0;
    return show(stable > held ? stable - held : 0);
  }

  GeneratedText take() {
    result_.tokens.assign(all_.begin() + static_cast<std::ptrdiff_t>(prompt_), all_.end());
    return std::move(result_);
  }

 private:
  std::string finish() {
    ended_ = true;
    return show(result_.text.size());
  }
  std::string show(size_t end) {
    while (end > shown_ && end < result_.text.size() && (result_.text[end] & 0xC0) == 0x80) --end;
    if (end <= shown_) return {};
    return result_.text.substr(std::exchange(shown_, end), end - shown_);
  }

  const Tokenizer& tokenizer_;
  const GenerationOptions& options_;
  std::vector<int32_t> all_;
  size_t prompt_;
  size_t before_ = 0;  // bytes of the prompt's text
  size_t shown_ = 0;
  size_t longest_stop_ = 0;
  bool ended_ = false;
  GeneratedText result_;
};

}  // namespace

int32_t next_token(std::span<const float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                   int64_t sample) {
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {static_cast<int32_t>(i), logits[i]};
  if (options.repetition_penalty != 1) {
    std::vector<int32_t> once(seen.begin(), seen.end());
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    for (const int32_t token : once) {
      double& weight = candidates[static_cast<size_t>(token)].weight;
      weight = weight > 0 ? weight / options.repetition_penalty : weight * options.repetition_penalty;
    }
  }
  if (options.temperature == 0) {
    return std::min_element(candidates.begin(), candidates.end(), is_likelier)->token;
  }
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    const auto end = candidates.begin() + options.top_k;
    std::nth_element(candidates.begin(), end - 1, candidates.end(), is_likelier);
    candidates.erase(end, candidates.end());
  }
  std::sort(candidates.begin(), candidates.end(), is_likelier);
  const double largest = candidates.front().weight;
  double sum = 0;
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((candidate.weight - largest) / options.temperature);
    sum += candidate.weight;
  }
  if (options.top_p < 1) {
    const double wanted = options.top_p * sum;
    double have = 0;
    size_t kept = 0;
    while (kept < candidates.size() && have < wanted) have += candidates[kept++].weight;
    candidates.resize(std::max<size_t>(1, kept));
    sum = have > 0 ? have : candidates.front().weight;
  }
  const PhiloxBlock drawn = philox_at(options.seed, static_cast<uint64_t>(sample), seen.size());
  double left = unit_interval(drawn[0]) * sum;
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;
}

Generator::Generator(const Run& run, int64_t samples, int64_t context, bool cached)
    : run_(run), samples_(samples), context_(context), tokens_(static_cast<size_t>(samples)) {
  TITAN_CHECK(run.share.whole(), run.share.split.ranks);  // generation_problems has reported it
  const int64_t ranks = run.place.mesh.size(MeshAxis::tp);
  rows_ = (samples + ranks - 1) / ranks * ranks;
  if (cached) cache_ = std::make_unique<KeyValueCache>(rows_, context + 1);  // one more slot for padding tokens
}

/// A rectangular batch of `tokens`, padded, that follow the `first` tokens of each sample.
BatchContext Generator::batch_of(const std::vector<std::vector<int32_t>>& tokens,
                                 const std::vector<int64_t>& first) const {
  int64_t length = 0;
  for (const auto& row : tokens) length = std::max<int64_t>(length, std::ssize(row));
  const at::TensorOptions whole(at::kLong);
  BatchContext batch;
  batch.tokens = at::zeros({rows_, length}, whole);
  batch.positions = at::zeros({rows_, length}, whole);
  batch.logit_rows = at::zeros({samples_}, whole);
  for (int64_t row = 0; row < rows_; ++row) {
    const auto sample = static_cast<size_t>(std::min(row, samples_ - 1));
    int64_t* ids = batch.tokens.mutable_data_ptr<int64_t>() + row * length;
    int64_t* positions = batch.positions.mutable_data_ptr<int64_t>() + row * length;
    std::copy(tokens[sample].begin(), tokens[sample].end(), ids);
    for (int64_t i = 0; i < length; ++i) positions[i] = std::min(first[sample] + i, context_ - 1);
    if (row < samples_) {
      batch.logit_rows.mutable_data_ptr<int64_t>()[row] = row * length + std::ssize(tokens[sample]) - 1;
    }
  }
  batch.labels = at::full({rows_, length}, kIgnoredLabel, whole);
  for (at::Tensor* tensor : {&batch.tokens, &batch.positions, &batch.logit_rows, &batch.labels}) {
    *tensor = tensor->to(run_.device.device);
  }
  batch.cache = cache_.get();
  return batch;
}

at::Tensor Generator::read(const std::vector<std::vector<int32_t>>& tokens, const std::vector<bool>& ended) {
  TITAN_CHECK(std::ssize(tokens) == samples_, tokens.size(), samples_);
  std::vector<int64_t> first;
  const auto has_ended = [&](size_t sample) { return !ended.empty() && ended[sample]; };
  for (size_t i = 0; i < tokens.size(); ++i) {
    first.push_back(cache_ ? std::ssize(tokens_[i]) : 0);
    if (has_ended(i)) continue;
    tokens_[i].insert(tokens_[i].end(), tokens[i].begin(), tokens[i].end());
    TITAN_CHECK(!tokens[i].empty() && std::ssize(tokens_[i]) <= context_, tokens_[i].size(), context_);
  }
  const at::Tensor logits = infer(run_, batch_of(cache_ ? tokens : tokens_, first), UnitMode::logits);
  if (cache_) {
    std::vector<int64_t> counts;
    for (int64_t row = 0; row < rows_; ++row) {
      const auto sample = static_cast<size_t>(std::min(row, samples_ - 1));
      counts.push_back(has_ended(sample) ? 0 : std::ssize(tokens[sample]));
    }
    cache_->advance(counts);
  }
  return logits.to(at::kFloat).cpu().contiguous();
}

std::vector<int32_t> Generator::agreed(std::vector<int32_t> tokens) {
  stopped_ = StopSignals::received() != 0;
  if (!run_.communicators.world) return tokens;
  at::Tensor all = at::zeros({samples_ + 1}, at::TensorOptions(at::kLong));
  all[samples_] = stopped_ ? 1 : 0;
  if (run_.world.rank == 0) {
    for (int64_t i = 0; i < samples_; ++i) all[i] = tokens[static_cast<size_t>(i)];
  }
  all = all.to(run_.device.device);
  run_.communicators.world->all_reduce({all})->wait();
  all = all.cpu();
  for (int64_t i = 0; i < samples_; ++i) tokens[static_cast<size_t>(i)] = all[i].item<int32_t>();
  stopped_ = all[samples_].item<int64_t>() > 0;
  return tokens;
}

std::vector<GeneratedText> Generator::generate(const std::vector<std::vector<int32_t>>& prompts,
                                               const GenerationOptions& options, const Tokenizer& tokenizer,
                                               const std::function<void(size_t, const std::string&)>& on_text) {
  std::vector<GrowingText> texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      throw Error(ExitCode::bad_data, "a prompt is empty, and this tokenizer has no token to begin a text with");
    }
    std::vector<int32_t> all = tokens_[i];
    all.insert(all.end(), prompts[i].begin(), prompts[i].end());
    if (std::ssize(all) >= context_) {
      throw Error(ExitCode::bad_data,
                  fmt::format("the prompt makes {} tokens, and the context holds {}; shorten it, or give a longer "
                              "context with --context",
                              all.size(), context_));
    }
    texts.emplace_back(tokenizer, std::move(all), options);
  }
  std::vector<std::vector<int32_t>> next = prompts;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::optional<double> first;
  while (true) {
    std::vector<bool> ended;
    for (const GrowingText& text : texts) ended.push_back(text.ended());
    const at::Tensor logits = read(next, ended);
    if (!first) first = seconds();
    const int64_t words = std::min(logits.size(1), tokenizer.vocabulary_size());
    const auto row_of = [&](size_t i) {
      return std::span<const float>(logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1),
                                    static_cast<size_t>(logits.size(1)));
    };
    std::vector<int32_t> chosen;
    for (size_t i = 0; i < texts.size(); ++i) {
      chosen.push_back(next_token(row_of(i).first(static_cast<size_t>(words)), texts[i].all(), options.sampling,
                                  static_cast<int64_t>(i)));
    }
    chosen = agreed(std::move(chosen));
    bool goes_on = false;
    for (size_t i = 0; i < texts.size(); ++i) {
      next[i] = {chosen[i]};
      if (texts[i].ended()) continue;
      const std::string more = texts[i].add(chosen[i], row_of(i), context_);
      if (on_text && !more.empty()) on_text(i, more);
      goes_on = goes_on || !texts[i].ended();
    }
    if (!goes_on || stopped_) break;
  }
  std::vector<GeneratedText> results;
  const double all = seconds();
  for (GrowingText& text : texts) {
    results.push_back(text.take());
    results.back().first_seconds = *first, results.back().seconds = all;
  }
  return results;
}

namespace {

/// The chat template for metrics.sample_prompt, if the run trains on conversations; else null.
std::shared_ptr<const ChatTemplate> sample_template(const Run& run) {
  const bool answers = run.config.training.dataset == "chat" && !run.config.metrics.sample_prompt.empty();
  return answers ? open_chat_template(run.config, run.data.tokenizer) : nullptr;
}

std::vector<int32_t> sample_prompt(const Run& run, const ChatTemplate* chat) {
  const std::string& text = run.config.metrics.sample_prompt;
  if (!chat) return run.data.tokenizer->encode(text, /*bos=*/true, /*eos=*/false);
  EncodedChat prompt = chat->prompt({{"user", text}});
  if (!prompt.problem.empty()) throw Error(ExitCode::bad_config, "metrics.sample_prompt: " + prompt.problem);
  return std::move(prompt.ids);
}

}  // namespace

void check_samples(const Run& run) {
  if (run.config.metrics.sample_freq == 0) return;
  const auto refuse = [](const std::string& why) {
    throw Error(ExitCode::bad_config, fmt::format("metrics.sample_freq: no text can be written: {}", why));
  };
  TITAN_CHECK(run.share.whole());
  if (!run.data.tokenizer->reads_text()) refuse("this run's tokenizer is ids alone; leave it out");
  const int64_t prompt = std::ssize(sample_prompt(run, sample_template(run).get()));
  if (prompt == 0) refuse("the tokenizer has no token to begin with; give metrics.sample_prompt");
  if (prompt >= run.config.training.seq_len) {
    refuse(fmt::format("metrics.sample_prompt makes {} tokens, and training.seq_len is {}; shorten it", prompt,
                       run.config.training.seq_len));
  }
}

std::optional<SampleReport> write_sample(const Run& run, int64_t step) {
  const MetricsSection& metrics = run.config.metrics;
  const Tokenizer& tokenizer = *run.data.tokenizer;
  const std::shared_ptr<const ChatTemplate> chat = sample_template(run);
  const std::vector<int32_t> prompt = sample_prompt(run, chat.get());
  GenerationOptions options;
  options.sampling.temperature = metrics.sample_temperature;
  options.sampling.seed = static_cast<uint64_t>(step);
  options.max_new_tokens = metrics.sample_tokens;
  if (tokenizer.eos_id() != Tokenizer::kNoId) options.stop_ids = {tokenizer.eos_id()};
  if (chat) {
    options.stop_ids = chat->stop_ids();
    if (!chat->stop_text().empty()) options.stop_texts = {chat->stop_text()};
  }
  const int64_t context = std::min(run.config.training.seq_len, std::ssize(prompt) + metrics.sample_tokens);
  Generator generator(run, 1, context);
  std::string text = generator.generate({prompt}, options, tokenizer)[0].text;
  if (generator.was_stopped()) return std::nullopt;
  return SampleReport{step, metrics.sample_prompt + (chat ? "\n" : ""), std::move(text)};
}

}  // namespace titan
