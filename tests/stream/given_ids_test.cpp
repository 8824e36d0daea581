// Ids that another package made become a .bin file, and a run needs nothing but that file to train on them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "src/corpus/token_source.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/packed.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"
#include "titan/corpus/tokenize.h"
#include "titan/corpus/vocabulary.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

const std::filesystem::path kModel = checkout() / "configs/tokenizers/stories.model";

class GivenIdsTest : public testing::Test {
 protected:
  Tokenization wanted(const std::string& lines, const std::string& name = "ids.jsonl") {
    Tokenization tokenization;
    tokenization.dataset = {.dataset = "text", .path = folder_.write(name, lines), .text_field = "ids"};
    tokenization.ids = GivenIds{/*vocabulary=*/100, /*bos=*/1, /*eos=*/2, "somebody"};
    tokenization.output = folder_ / "out.bin";
    tokenization.overwrite = true;
    return tokenization;
  }

  std::vector<std::vector<int32_t>> ids_of(const Tokenization& tokenization) {
    std::ostringstream out;
    tokenize_corpus(tokenization, out);
    TokenFile file(tokenization.output);
    std::vector<std::vector<int32_t>> all;
    for (int64_t i = 0; i < file.facts().documents; ++i) file.document(i).append_to(all.emplace_back());
    return all;
  }

  std::string refusal(const std::string& line, const std::string& name = "ids.jsonl") {
    return message_of(ExitCode::bad_data, [&] { ids_of(wanted("{\"ids\": [3]}\n" + line + "\n", name)); });
  }

  TemporaryFolder folder_;
};

TEST_F(GivenIdsTest, EveryListIsADocumentThatBeginsAndEndsOnce) {
  const std::string lines = R"({"ids": [3, 99, 0], "text": [5]}
{"more": {"ids": [7]}, "ids": [1, 3, 2]}
{"ids": []}
{"ids": [8], "ids": [1, 9]})";
  const std::vector<std::vector<int32_t>> framed{{1, 3, 99, 0, 2}, {1, 3, 2}, {1, 2}, {1, 9, 2}};
  EXPECT_EQ(ids_of(wanted(lines)), framed);
  Tokenization plain = wanted(test::gzip(lines), "ids.jsonl.gz");
  plain.ids->bos = plain.ids->eos = Tokenizer::kNoId;
  EXPECT_EQ(ids_of(plain), (std::vector<std::vector<int32_t>>{{3, 99, 0}, {1, 3, 2}, {}, {1, 9}}));
}

TEST_F(GivenIdsTest, MalformedTextBesideTheIdsIsNoMatter) {
  const std::string lines =
      "{\"ids\": [3], \"text\": \"caf\xe9\"}\n"
      "{\"ids\": [4], \"text\": \"half of a pair: \\ud83d\"}\n"
      "{\"text\": \"\xff \\udd94\", \"ids\": [5]}\n";
  EXPECT_EQ(ids_of(wanted(lines)), (std::vector<std::vector<int32_t>>{{1, 3, 2}, {1, 4, 2}, {1, 5, 2}}));
}

TEST_F(GivenIdsTest, OfSeveralListsOfOneNameTheLastIsJudged) {
  const std::string lines = R"({"ids": [100, 2.5], "ids": [3]}
{"ids": "none", "ids": [4]})";
  EXPECT_EQ(ids_of(wanted(lines)), (std::vector<std::vector<int32_t>>{{1, 3, 2}, {1, 4, 2}}));
  EXPECT_PRED_FORMAT2(test::contains, refusal(R"({"ids": [3], "ids": [100]})"), "item 0 of \"ids\" is not an id");
}

TEST_F(GivenIdsTest, WhatIsNoListOfIdsCanBeLeftOut) {
  Tokenization skipping = wanted("{\"ids\": [3]}\n{\"ids\": [100]}\n{\"ids\": [4]}\n");
  skipping.dataset.bad_record = BadRecord::skip;
  EXPECT_EQ(ids_of(skipping), (std::vector<std::vector<int32_t>>{{1, 3, 2}, {1, 4, 2}}));
}

TEST_F(GivenIdsTest, ACommandThatFailedBeforeItWroteAnythingIsMendedWithoutMore) {
  Tokenization tokenization = wanted("{\"ids\": [3, 99]}\n");
  tokenization.overwrite = false;
  tokenization.ids->vocabulary = 99;
  message_of(ExitCode::bad_data, [&] { ids_of(tokenization); });
  tokenization.ids->vocabulary = 100;
  EXPECT_EQ(ids_of(tokenization), (std::vector<std::vector<int32_t>>{{1, 3, 99, 2}}));
}

TEST_F(GivenIdsTest, ABinFileGivesTheBatchesThatItsTokenizerGivesWithoutThatTokenizer) {
  const auto tokenizer = open_vocabulary(kModel);
  std::string texts, ids;
  for (size_t i = 0; i < 50; ++i) {
    const std::string& story = test::stories()[i];
    texts += nlohmann::json{{"text", story}}.dump() + "\n";
    ids += nlohmann::json{{"ids", tokenizer->encode(story, false, false)}}.dump() + "\n";
  }
  Tokenization tokenization = wanted(ids);
  tokenization.ids = GivenIds{tokenizer->vocabulary_size(), tokenizer->bos_id(), tokenizer->eos_id(), "stories"};
  ids_of(tokenization);
  const auto recorded = open_vocabulary(tokenization.output);
  EXPECT_EQ(recorded->vocabulary_size(), tokenizer->vocabulary_size());
  EXPECT_EQ(recorded->bos_id(), tokenizer->bos_id());
  EXPECT_EQ(recorded->eos_id(), tokenizer->eos_id());
  EXPECT_PRED_FORMAT2(test::contains, recorded->description(), "Ids made elsewhere (stories): #words 2048");
  const BatchPlan plan{/*sequence_length=*/64, /*local_batch=*/2, 1, 1, 0};
  BatchStream of_text(open_dataset({.dataset = "text", .path = folder_.write("a.jsonl", texts)}), tokenizer, plan, {});
  BatchStream of_ids(open_dataset({.dataset = "text", .path = tokenization.output.string()}), recorded, plan, {});
  for (int i = 0; i < 100; ++i) {
    const std::optional<StepBatch> one = of_text.next(), other = of_ids.next();
    ASSERT_TRUE(one && other);
    EXPECT_EQ(one->microbatches[0].tokens, other->microbatches[0].tokens);
    EXPECT_EQ(one->microbatches[0].labels, other->microbatches[0].labels);
  }
}

TEST_F(GivenIdsTest, TheVocabularyOfABinFileReadsNoText) {
  ids_of(wanted("{\"ids\": [3, 4]}\n"));
  const auto recorded = open_vocabulary(folder_ / "out.bin");
  EXPECT_FALSE(recorded->reads_text());
  EXPECT_EQ(recorded->decode(std::vector<int32_t>{3, 99}), "3 99");
  message_of(ExitCode::bad_data, [&] { recorded->decode(std::vector<int32_t>{100}); });
  message_of(ExitCode::bad_data, [&] { recorded->encode("text", true, true); });
  const std::string text = folder_.write("a.jsonl", "{\"text\": \"x\"}\n");
  auto train_on = [&](const DatasetOptions& dataset) {
    return message_of(ExitCode::bad_data, [&] { BatchStream(open_dataset(dataset), recorded, {8, 1, 1, 1, 0}, {}); });
  };
  EXPECT_PRED_FORMAT2(test::contains, train_on({.dataset = "text", .path = text}),
                      "Give .bin files alone, for validation too, or name the tokenizer itself");
  Tokenization tokenization = wanted("");
  tokenization.ids.reset();
  tokenization.dataset = {.dataset = "text", .path = text};
  tokenization.tokenizer = folder_ / "out.bin";
  tokenization.output = folder_ / "other.bin";
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { ids_of(tokenization); }), "is text");
}

TEST_F(GivenIdsTest, FilesOfTwoMakersAreNoCorpus) {
  Tokenization tokenization = wanted("{\"ids\": [3]}\n");
  tokenization.output = folder_ / "both/a.bin";
  ids_of(tokenization);
  tokenization.ids->maker = "somebody else";
  tokenization.output = folder_ / "both/b.bin";
  ids_of(tokenization);
  auto open = [&] { open_dataset({.dataset = "text", .path = (folder_ / "both").string()}); };
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, open), "Name files of one tokenizer");
}

}  // namespace
}  // namespace titan
