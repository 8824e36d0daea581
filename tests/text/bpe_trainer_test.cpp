#include "src/text/bpe_trainer.h"
#include "support/random_sequence.h"

#include <map>

#include "support/files.h"
#include "support/texts.h"

namespace titan {
namespace {

/// The definition: count all pairs of all words from scratch before every merge.
std::vector<std::string> train_by_definition(const std::vector<std::string>& words, size_t size) {
  auto tokens = test::bytes_and({});
  std::vector<std::vector<int32_t>> parts;
  for (const auto& word : words) parts.emplace_back(word.begin(), word.end());
  while (tokens.size() < size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& word : parts) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    auto best = counts.begin();
    for (auto at = counts.begin(); at != counts.end(); ++at) {
      if (at->second > best->second) best = at;
    }
    auto [left, right] = best->first;
    std::string bytes = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    auto known = std::find(tokens.begin(), tokens.end(), bytes);
    auto merged = static_cast<int32_t>(known - tokens.begin());
    if (known == tokens.end()) tokens.push_back(bytes);
    for (auto& word : parts) {
      std::vector<int32_t> joined;
      for (size_t i = 0; i < word.size(); ++i) {
        bool here = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        joined.push_back(here ? merged : word[i]);
        i += here ? 1 : 0;
      }
      word = joined;
    }
  }
  return tokens;
}

TEST(BpeTrainer, LearnsTheMergesOfTheDefinition) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    PhiloxSequence random(seed);
    std::vector<std::string> words;
    std::string text;
    for (int i = 0; i < 300; ++i) {
      std::string word = (i == 0 ? "" : " ") +
                         test::random_text(U"aaabbc", 1 + random.below(9), seed * 1000 + static_cast<uint64_t>(i));
      words.push_back(word);
      text += word;
    }
    BpeTrainer trainer;
    trainer.add(text);
    EXPECT_EQ(trainer.train(310), train_by_definition(words, 310)) << "seed " << seed;
  }
}

TEST(BpeTrainer, DependsOnTheTextOnlyAndNotOnTheOrderOfItsDocuments) {
  BpeTrainer forward, backward;
  for (size_t i = 0; i < 100; ++i) forward.add(test::stories()[i]);
  for (size_t i = 100; i > 0; --i) backward.add(test::stories()[i - 1]);
  auto tokens = forward.train(900);
  EXPECT_EQ(tokens.size(), 900u);
  EXPECT_EQ(tokens, backward.train(900));
}

TEST(BpeTrainer, WhatItLearnsMakesATokenizer) {
  BpeTrainer trainer;
  for (size_t i = 0; i < 50; ++i) trainer.add(test::stories()[i]);
  TiktokenTokenizer tokenizer(trainer.train(600));
  const std::string& story = test::stories()[1000];
  auto ids = tokenizer.encode(story, false, false);
  EXPECT_EQ(tokenizer.decode(ids), story);
  EXPECT_LT(ids.size() * 2, story.size());
}

TEST(BpeTrainer, TooLittleTextIsAnErrorWithTheNumberItSufficesFor) {
  BpeTrainer trainer;
  trainer.add("abab abab");
  std::string message = test::message_of(ExitCode::bad_data, [&] { trainer.train(1000); });
  EXPECT_PRED_FORMAT2(test::contains, message, "give only 258 tokens, 1000 were asked for");
  EXPECT_PRED_FORMAT2(test::contains, test::message_of(ExitCode::bad_data, [&] { trainer.train(255); }), "256 bytes");
}

}  // namespace
}  // namespace titan
