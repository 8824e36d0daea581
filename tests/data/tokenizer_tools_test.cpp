#include "titan/data/tokenizer_tools.h"

#include <algorithm>
#include <sstream>

#include "support/checkout.h"
#include "tests/data/fixtures.h"
#include "titan/base/filesystem.h"
#include "titan/data/stories.h"
#include "titan/data/tiktoken_file.h"
#include "titan/data/tokenizer.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

const std::filesystem::path kStories = checkout() / "configs/tokenizers/stories.model";

TokenizerTraining training_into(const TemporaryFolder& folder, int64_t size) {
  TokenizerTraining training;
  training.output = folder / "made.model";
  training.vocabulary_size = size;
  return training;
}

TEST(TokenizerTools, TheShippedStoryTokenizerIsWhatTheDocumentedCommandMakes) {
  TemporaryFolder folder;
  std::ostringstream said;
  train_tokenizer(training_into(folder, 2048), said);
  EXPECT_EQ(read_file(folder / "made.model"), read_file(kStories));
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "1,792 tokens learned from 8.00 MiB");
}

TEST(TokenizerTools, EncodingAndDecodingAreInverse) {
  std::string text = "Where is my kite? \xE6\xBC\xA2\n";
  std::istringstream in(text);
  std::ostringstream ids, back;
  encode_stream(kStories, {.bos = false, .eos = false}, in, ids);
  std::istringstream ids_in(ids.str());
  decode_stream(kStories, ids_in, back);
  EXPECT_EQ(back.str(), text);
}

TEST(TokenizerTools, BeginAndEndAreWrittenWhereAsked) {
  std::istringstream in("");
  std::ostringstream out;
  encode_stream(kStories, {.bos = true, .eos = true}, in, out);
  EXPECT_EQ(out.str(), "1792 1793\n");
}

TEST(TokenizerTools, MeasuringPrintsOneLineForEachTime) {
  std::istringstream in("some text to encode");
  std::ostringstream out;
  encode_stream(kStories, {.measure = 3}, in, out);
  std::string lines = out.str();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_PRED_FORMAT2(test::contains, lines, "MB/s");
}

TEST(TokenizerTools, InfoNamesKindIdsAndSpecialTokens) {
  std::ostringstream out;
  describe_tokenizer(kStories, out);
  EXPECT_PRED_FORMAT2(test::contains, out.str(), "tiktoken");
  EXPECT_PRED_FORMAT2(test::contains, out.str(), "2,048");
  EXPECT_PRED_FORMAT2(test::contains, out.str(), "1792 <|begin_of_text|>");
  EXPECT_PRED_FORMAT2(test::contains, out.str(), "\" grandmother\"");
}

TEST(TokenizerTools, WrongIdsAndSizesAreErrors) {
  std::istringstream words("12 twelve"), high("5000");
  std::ostringstream out;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { decode_stream(kStories, words, out); }),
                      "\"twelve\" is no token id");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { decode_stream(kStories, high, out); }),
                      "ids are 0 to 2047");
  TemporaryFolder folder;
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_config, [&] { train_tokenizer(training_into(folder, 400), out); }),
                      "512");
}

TEST(TokenizerTools, ATokenizerIsTrainedFromFilesToo) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the cat and the hat and the bat\n";
  TokenizerTraining training = training_into(folder, 520);
  training.dataset.dataset = "text";
  training.dataset.path = folder.write("corpus.txt", text);
  std::ostringstream said;
  train_tokenizer(training, said);
  EXPECT_EQ(read_tiktoken_file(folder / "made.model").size(), 264u);
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "corpus.txt");
}

TEST(TokenizerTools, TheHuggingFaceFormGivesTheIdsOfTheTiktokenForm) {
  TemporaryFolder folder;
  TokenizerTraining training = training_into(folder, 1500);
  training.most_bytes = 1 << 20;
  training.hugging_face = folder / "made/hf";
  std::ostringstream said;
  train_tokenizer(training, said);
  auto tiktoken = open_tokenizer(folder / "made.model");
  auto hugging_face = open_tokenizer(folder / "made/hf");
  EXPECT_EQ(hugging_face->vocabulary_size(), 1500);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    // What looks like a special token is ordinary text in both.
    const std::string text = write_story(9, seed) + test::random_text(U"the and'sé漢🙂 \n12", 300, seed) +
                             "<|end_of_text|><|begin_of_text|> <|eot_id|>the<|reserved_special_token_7|>";
    EXPECT_EQ(hugging_face->encode(text, true, true), tiktoken->encode(text, true, true));
    EXPECT_EQ(std::ranges::count(hugging_face->encode(text, true, true), hugging_face->eos_id()), 1);
    EXPECT_EQ(hugging_face->decode(tiktoken->encode(text, true, true)), "<|begin_of_text|>" + text + "<|end_of_text|>");
  }
}

TEST(TokenizerTools, RecordsThatTrainingSkippedAreCountedAndShown) {
  TemporaryFolder folder;
  std::string records = "{\n{}\n";
  for (int i = 0; i < 200; ++i) records += "{\"text\": \"the cat and the hat and the bat\"}\n";
  TokenizerTraining training = training_into(folder, 520);
  training.dataset.dataset = "text";
  training.dataset.path = folder.write("corpus.jsonl", records);
  training.dataset.bad_record = BadRecord::skip;
  std::ostringstream said;
  train_tokenizer(training, said);
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "corpus.jsonl:1: this line is no JSON");
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "2 bad records were left out");
}

TEST(TokenizerTools, AnOutputThatCannotBeWrittenIsToldBeforeAnythingIsRead) {
  TemporaryFolder folder;
  std::ostringstream said;
  auto refused = [&](const std::filesystem::path& output) {
    TokenizerTraining training = training_into(folder, 520);
    training.output = output;
    training.dataset.dataset = "no such dataset";  // another error, were it looked at
    return message_of(ExitCode::storage, [&] { train_tokenizer(training, said); });
  };
  EXPECT_PRED_FORMAT2(test::contains, refused(folder / "none/x.model"), "none, which is no folder");
  EXPECT_PRED_FORMAT2(test::contains, refused(folder.string()), "is a folder");
  EXPECT_PRED_FORMAT2(test::contains, refused(""), "names no file");
}

}  // namespace
}  // namespace titan
