#include "titan/train/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/job.h"
#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

std::vector<std::vector<int32_t>> rows(const at::Tensor& tokens, int64_t first, int64_t count) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    std::vector<int32_t>& one = all.emplace_back();
    for (int64_t i = first; i < first + count; ++i) one.push_back(tokens[row][i].item<int32_t>());
  }
  return all;
}

class Generation : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  std::unique_ptr<titan::Run> make_run() {
    std::vector<std::string> words = GetParam();
    words.insert(words.end(), {"--model.override.n_kv_heads=1", "--training.seq_len=64"});
    config_ = small_job(folder_, words);
    return build_run(config_, World(), log_);
  }

  TestFolder folder_;
  Log log_;
  JobConfig config_;
};

TEST_P(Generation, LogitsAreTheSameWithACacheAndWithoutReadAtOnceOrInParts) {
  const std::unique_ptr<titan::Run> run = make_run();
  const at::Tensor tokens = integers({2, 40}, 2000, 3);
  Generator whole(*run, 2, 64, /*cached=*/false);
  Generator parts(*run, 2, 64), single(*run, 2, 64);
  parts.read(rows(tokens, 0, 17));
  const at::Tensor expected = whole.read(rows(tokens, 0, 40));
  EXPECT_TRUE(near(parts.read(rows(tokens, 17, 23)), expected, 1e-5));
  at::Tensor last;
  for (int64_t i = 0; i < 40; ++i) last = single.read(rows(tokens, i, 1));
  EXPECT_TRUE(near(last, expected, 1e-5));
}

TEST_P(Generation, SamplesOfDifferentLengthDoNotSeeEachOther) {
  const std::unique_ptr<titan::Run> run = make_run();
  const at::Tensor tokens = integers({3, 40}, 2000, 4);
  std::vector<std::vector<int32_t>> prompts{rows(tokens, 0, 5)[0], rows(tokens, 0, 23)[1], rows(tokens, 0, 11)[2]};
  Generator batch(*run, 3, 64);
  std::vector<at::Tensor> together{batch.read(prompts)};
  for (int64_t i = 23; i < 28; ++i) together.push_back(batch.read(rows(tokens, i, 1)));
  for (int64_t sample = 0; sample < 3; ++sample) {
    Generator alone(*run, 1, 64);
    const at::Tensor mine = tokens.narrow(0, sample, 1);
    EXPECT_TRUE(near(together[0][sample], alone.read({prompts[static_cast<size_t>(sample)]})[0], 1e-5));
    for (int64_t i = 23; i < 28; ++i) {
      EXPECT_TRUE(near(together[static_cast<size_t>(i - 22)][sample], alone.read(rows(mine, i, 1))[0], 1e-5));
    }
  }
}

TEST_P(Generation, TrainingGoesOnAsIfNothingHadBeenGenerated) {
  const auto losses_with = [&](bool generates) {
    std::filesystem::remove_all(folder_ / "out");
    const std::unique_ptr<titan::Run> run = make_run();
    if (generates) Generator(*run, 1, 64).read({{1, 2, 3}});
    EXPECT_EQ(train(*run), ExitCode::success);
    return losses(folder_);
  };
  const std::vector<double> without = losses_with(false);
  EXPECT_EQ(losses_with(true), without);
}

INSTANTIATE_TEST_SUITE_P(Models, Generation,
                         ::testing::Values(std::vector<std::string>{},
                                           std::vector<std::string>{"--model.name=qwen2", "--model.flavor=custom",
                                                                    "--model.override.hidden_dim=64"},
                                           std::vector<std::string>{"--model.name=qwen3", "--model.flavor=custom",
                                                                    "--model.override.hidden_dim=64"}));

TEST(Sampling, ZeroTemperatureTakesTheLikeliestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(next_token(std::vector<float>{0, 3, 1, 3}, {}, {}, 0), 1);
}

TEST(Sampling, APenaltyMakesTokensThatWereThereLessLikelyWhicheverTheirSign) {
  const std::vector<int32_t> seen{1, 1, 2};
  EXPECT_EQ(next_token(std::vector<float>{1.6F, 3, -1}, seen, {.repetition_penalty = 2}, 0), 0);
  EXPECT_EQ(next_token(std::vector<float>{-2, -5, -1.1F}, seen, {.repetition_penalty = 2}, 0), 0);
}

/// How often each token is drawn, of 20,000 times.
std::map<int32_t, double> frequencies(const std::vector<float>& logits, SamplingOptions options) {
  std::map<int32_t, double> drawn;
  for (int i = 0; i < 20000; ++i) drawn[next_token(logits, {}, options, i)] += 1.0 / 20000;
  return drawn;
}

TEST(Sampling, FrequenciesAreThoseOfTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits{0, 1, 2, -1};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit / temperature);
    auto drawn = frequencies(logits, {.temperature = temperature, .seed = 9});
    for (int32_t token = 0; token < 4; ++token) {
      EXPECT_NEAR(drawn[token], std::exp(logits[static_cast<size_t>(token)] / temperature) / sum, 0.012) << token;
    }
  }
}

TEST(Sampling, TopKAndTopPKeepTheLikeliestAndNoMore) {
  const std::vector<float> logits{std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
  auto two = frequencies(logits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(two.size(), 2U);
  EXPECT_NEAR(two[1], 4.0 / 7, 0.012);
  auto three = frequencies(logits, {.temperature = 1, .top_p = 0.75});
  EXPECT_EQ(three.size(), 3U) << "0.4 + 0.3 are less than 0.75";
  EXPECT_EQ(three.count(0), 0U);
  EXPECT_NEAR(three[3], 2.0 / 9, 0.012);
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .top_p = 0.1}).size(), 1U);
}

TEST(Sampling, TheSameSeedDrawsTheSameAndAnotherDoesNot) {
  const std::vector<float> logits(50, 0.0F);
  std::vector<int32_t> first, again, other;
  for (int i = 0; i < 30; ++i) {
    first.push_back(next_token(logits, {}, {.temperature = 1, .seed = 1}, i));
    again.push_back(next_token(logits, {}, {.temperature = 1, .seed = 1}, i));
    other.push_back(next_token(logits, {}, {.temperature = 1, .seed = 2}, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(GenerationEnds, AtATokenATextOrALength) {
  const TestFolder folder;
  const Log log;
  const JobConfig config = small_job(folder, {"--training.seq_len=64"});
  const std::unique_ptr<titan::Run> run = build_run(config, World(), log);
  const Tokenizer& tokenizer = *run->data.tokenizer;
  const std::vector<int32_t> prompt = tokenizer.encode("The old sailor", true, false);
  const auto generate = [&](GenerationOptions options) {
    options.max_new_tokens = 20;
    std::string shown;
    Generator generator(*run, 1, 64);
    GeneratedText text =
        generator.generate({prompt}, options, tokenizer, [&](size_t, const std::string& more) { shown += more; })[0];
    EXPECT_EQ(shown, text.text);
    return text;
  };
  const GeneratedText all = generate({});
  EXPECT_EQ(all.end, GeneratedText::End::length);
  EXPECT_EQ(all.tokens.size(), 20U);
  EXPECT_EQ(all.log_probabilities.size(), 20U);
  ASSERT_FALSE(all.text.empty());
  const GeneratedText by_token = generate({.stop_ids = {all.tokens[7]}});
  EXPECT_EQ(by_token.end, GeneratedText::End::token);
  EXPECT_LE(by_token.tokens.size(), 7U);
  const std::string stop = all.text.substr(all.text.size() / 2, 3);
  const GeneratedText by_text = generate({.stop_texts = {stop}});
  EXPECT_EQ(by_text.end, GeneratedText::End::text);
  EXPECT_EQ(by_text.text, all.text.substr(0, all.text.find(stop)));
}

TEST(Samples, AreWrittenWhenDueAndLeaveTrainingAsItWas) {
  const auto train_with = [](const TestFolder& folder, const std::vector<std::string>& more) {
    std::vector<std::string> words{"--training.steps=5", "--training.seq_len=64"};
    words.insert(words.end(), more.begin(), more.end());
    const Log log;
    const JobConfig config = small_job(folder, words);
    EXPECT_EQ(train(*build_run(config, World(), log)), ExitCode::success);
  };
  const TestFolder with, without;
  train_with(with, {"--metrics.sample_freq=2", "--metrics.sample_prompt=The old", "--metrics.sample_tokens=8"});
  train_with(without, {});
  EXPECT_EQ(losses(with), losses(without));
  const std::vector<nlohmann::json> samples = metrics_of(with, "text");
  EXPECT_EQ(column<int64_t>(samples, "step"), (std::vector<int64_t>{2, 4, 5}));
  for (const nlohmann::json& sample : samples) {
    EXPECT_EQ(sample["event"], "sample");
    EXPECT_EQ(sample["prompt"], "The old");
    EXPECT_FALSE(sample["text"].get<std::string>().empty());
  }
  const std::string page = read_file(with / "out/report.html");
  EXPECT_NE(page.find("sample: The old"), std::string::npos);
}

TEST(Samples, OfARunOnConversationsAnswerTheUser) {
  const TestFolder folder;
  const std::string corpus = folder / "chat.jsonl";
  for (int i = 0; i < 10; ++i) {  // more than one batch
    std::ofstream(corpus, std::ios::app) << R"({"prompt": "What is it?", "completion": "a kite"})" << '\n';
  }
  const Log log;
  const JobConfig config = small_job(
      folder, {"--training.steps=40", "--training.seq_len=64", "--training.dataset=chat", "--optimizer.lr=1e-2",
               "--training.dataset_path=" + corpus, "--data.chat_template=llama3", "--metrics.sample_freq=40",
               "--metrics.sample_prompt=What is it?", "--metrics.sample_temperature=0"});
  EXPECT_EQ(train(*build_run(config, World(), log)), ExitCode::success);
  const std::vector<nlohmann::json> samples = metrics_of(folder, "text");
  ASSERT_EQ(samples.size(), 1);
  EXPECT_EQ(samples[0]["prompt"], "What is it?\n");
  EXPECT_EQ(samples[0]["text"], "a kite");
}

TEST(Samples, WhatCannotBeWrittenIsRefusedAtTheStart) {
  const TestFolder folder;
  const Log log;
  const std::string long_prompt(400, 'x');
  const JobConfig config =
      small_job(folder, {"--metrics.sample_freq=2", "--metrics.sample_prompt=" + long_prompt, "--training.seq_len=64"});
  EXPECT_THROW(build_run(config, World(), log), Error);
}

TEST(GenerationEnds, PromptsThatLeaveNoRoomAreRefused) {
  const TestFolder folder;
  const Log log;
  const JobConfig config = small_job(folder);
  const std::unique_ptr<titan::Run> run = build_run(config, World(), log);
  Generator generator(*run, 1, 4);
  EXPECT_THROW(generator.generate({{1, 2, 3, 4}}, {}, *run->data.tokenizer), Error);
  EXPECT_THROW(generator.generate({{}}, {}, *run->data.tokenizer), Error);
}

}  // namespace
}  // namespace titan
