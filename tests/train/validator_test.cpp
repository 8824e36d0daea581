#include "titan/train/validator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/job.h"
#include "support/model.h"
#include "support/random_sequence.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// One id per letter a … z and a space, so that the small model's vocabulary suffices.
class LetterTokenizer : public Tokenizer {
 public:
  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char c : text) ids.push_back(c == ' ' ? 26 : c - 'a');
  }
  std::string decode(std::span<const int32_t> ids) const override { return std::string(ids.size(), '?'); }
  int64_t vocabulary_size() const override { return 30; }
  int32_t bos_id() const override { return 28; }
  int32_t eos_id() const override { return 29; }
  std::string name() const override { return "letters"; }
  std::string description() const override { return "letters"; }
  uint64_t fingerprint() const override { return 1; }
};

std::string some_words(size_t letters) {
  PhiloxSequence random(3);
  std::string text;
  while (text.size() < letters) text += static_cast<char>('a' + random.below(26));
  return text;
}

/// A validation set of one file and a small model to measure on it.
struct Fixture {
  explicit Fixture(size_t letters = 200) { folder.write("held_out.txt", some_words(letters)); }

  JobConfig config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--validation.enable", "--validation.dataset=text",
                                   "--validation.dataset_path=" + folder / "held_out.txt", "--validation.seq_len=12"};
    words.insert(words.end(), more.begin(), more.end());
    return job_config(words);
  }

  Validator make(const JobConfig& config) const {
    return {config, std::make_shared<LetterTokenizer>(), /*block_causal=*/false, {}, nullptr, log};
  }

  std::optional<ValidationReport> run(const JobConfig& config) {
    Validator validator = make(config);
    return validator.run(5, [&](const BatchContext& batch) { return small.executor->infer(batch, UnitMode::evaluate); },
                         {at::kCPU, "cpu", 1 << 20});
  }

  TestFolder folder;
  Log log;
  SmallModel small{small_request()};
};

TEST(Validator, IsDueAtStepOneAndEveryFreqSteps) {
  const Fixture f;
  const JobConfig config = f.config({"--validation.freq=4"});
  const Validator validator = f.make(config);
  std::vector<int64_t> due;
  for (int64_t step = 1; step <= 12; ++step) {
    if (validator.due(step)) due.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{1, 4, 8, 12}));
}

TEST(Validator, TheLossIsTheMeanOverEveryTokenOfTheSet) {
  Fixture f;
  const JobConfig config = f.config();
  double sum = 0;
  int64_t tokens = 0;
  BatchStream stream(open_dataset(make_validation_dataset(config)), std::make_shared<LetterTokenizer>(),
                     {.sequence_length = 12, .local_batch = 1}, {.chunks = {.infinite = false, .dataset = "text"}});
  while (const std::optional<StepBatch> batch = stream.next()) {
    BatchContext context;
    context.tokens = at::tensor(batch->microbatches[0].tokens).view({1, 12});
    const at::Tensor labels = at::tensor(batch->microbatches[0].labels);
    context.labels = labels.view({1, 12});
    const at::Tensor logits = as_double(f.small.executor->infer(context, UnitMode::logits)).flatten(0, 1);
    sum += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>();
    tokens += 12;
  }
  ASSERT_GT(tokens, 100);
  const std::optional<ValidationReport> report = f.run(config);
  ASSERT_TRUE(report);
  EXPECT_NEAR(report->loss, sum / static_cast<double>(tokens), 1e-6);
  EXPECT_EQ(report->step, 5);
}

TEST(Validator, TheBatchSizeDoesNotChangeTheLossOfTheWholeSetEvenWhenItDoesNotDivideIt) {
  Fixture f;
  const double by_one = f.run(f.config({"--validation.local_batch_size=1"}))->loss;
  for (const char* size : {"2", "5", "64"}) {
    EXPECT_NEAR(f.run(f.config({std::string("--validation.local_batch_size=") + size}))->loss, by_one, 1e-6) << size;
  }
}

TEST(Validator, ANumberOfBatchesIsTakenFromTheBeginningEveryTime) {
  Fixture f;
  const JobConfig few = f.config({"--validation.steps=2"});
  const double first = f.run(few)->loss;
  EXPECT_EQ(f.run(few)->loss, first);
  EXPECT_NE(f.run(f.config({"--validation.steps=3"}))->loss, first);
  EXPECT_NE(f.run(f.config())->loss, first);
}

TEST(Validator, MoreBatchesThanTheSetHoldsReadItAgain) {
  Fixture f(100);  // seven chunks
  EXPECT_TRUE(std::isfinite(f.run(f.config({"--validation.steps=20", "--validation.local_batch_size=1"}))->loss));
}

/// The data error that making a validator for `config` ends with.
std::string refused(const Fixture& f, const JobConfig& config) {
  try {
    f.make(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Validator, ASetThatCannotBeUsedIsToldBeforeTheFirstRun) {
  const Fixture f(8);
  EXPECT_NE(refused(f, f.config()).find("Give more text"), std::string::npos);
  f.folder.write("bad.jsonl", "{\"body\": 1}\n");
  const JobConfig bad = f.config({"--validation.dataset_path=" + f.folder / "bad.jsonl"});
  EXPECT_NE(refused(f, bad).find("bad.jsonl:1: "), std::string::npos);
}

TEST(Validator, WhatWasSkippedIsToldInTheFirstRunOnly) {
  Fixture f;
  std::string records = "{\"text\": 5}\n{}\n";
  for (int i = 0; i < 20; ++i) records += "{\"text\": \"" + some_words(30) + "\"}\n";
  f.folder.write("records.jsonl", records);
  const JobConfig config =
      f.config({"--validation.dataset_path=" + f.folder / "records.jsonl", "--data.bad_record=skip"});
  Validator validator = f.make(config);
  std::vector<std::string> shown;
  for (int i = 0; i < 2; ++i) {
    ::testing::internal::CaptureStdout();
    EXPECT_TRUE(
        validator.run(1, [&](const BatchContext& batch) { return f.small.executor->infer(batch, UnitMode::evaluate); },
                      {at::kCPU, "cpu", 1 << 20}));
    shown.push_back(::testing::internal::GetCapturedStdout());
  }
  EXPECT_NE(shown[0].find("validation: "), std::string::npos) << shown[0];
  EXPECT_NE(shown[0].find("records.jsonl:1: "), std::string::npos) << shown[0];
  EXPECT_NE(shown[0].find("validation: 2 bad records were left out"), std::string::npos) << shown[0];
  EXPECT_EQ(shown[1], "");
}

TEST(Validator, ARequestToStopGivesNoPartialResult) {
  Fixture f;
  const JobConfig config = f.config();
  Validator validator = f.make(config);
  int64_t batches = 0;
  const auto loss_of = [&](const BatchContext& batch) {
    ++batches;
    return f.small.executor->infer(batch, UnitMode::evaluate);
  };
  int64_t asked = 0;
  EXPECT_FALSE(validator.run(5, loss_of, {at::kCPU, "cpu", 1 << 20}, [&] { return ++asked == 3; }));
  EXPECT_EQ(batches, 2) << "it is asked before every batch";
}

TEST(Validator, TheModelIsLeftAsItWas) {
  Fixture f;
  std::vector<at::Tensor> before;
  for (const auto& parameter : f.small.model->parameter_handles()) before.push_back(parameter->master.clone());
  f.run(f.config());
  size_t index = 0;
  for (const auto& parameter : f.small.model->parameter_handles()) {
    EXPECT_TRUE(same_bits(parameter->master, before[index++])) << parameter->name();
    EXPECT_FALSE(parameter->gradient_shard.defined());
  }
}

}  // namespace
}  // namespace titan
