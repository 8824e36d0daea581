#include "titan/corpus/train_tokenizer.h"

#include <algorithm>
#include <sstream>

#include "src/text/tiktoken.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"
#include "titan/text/tokenizer.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

TokenizerTraining training_into(const TemporaryFolder& folder, int64_t size) {
  TokenizerTraining training;
  training.output = folder / "made.model";
  training.vocabulary_size = size;
  return training;
}

TEST(TrainTokenizer, ATokenizerIsTrainedFromFilesToo) {
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

TEST(TrainTokenizer, TheHuggingFaceFormGivesTheIdsOfTheTiktokenForm) {
  TemporaryFolder folder;
  TokenizerTraining training = training_into(folder, 1500);
  training.dataset.path = test::story_corpus();
  training.most_bytes = 1 << 20;
  training.hugging_face = folder / "made/hf";
  std::ostringstream said;
  train_tokenizer(training, said);
  auto tiktoken = open_tokenizer(folder / "made.model");
  auto hugging_face = open_tokenizer(folder / "made/hf");
  EXPECT_EQ(hugging_face->vocabulary_size(), 1500);
  for (size_t seed = 0; seed < 20; ++seed) {
    // What looks like a special token is ordinary text in both.
    const std::string text = test::stories()[seed] + test::random_text(U"the and'sé漢🙂 \n12", 300, seed) +
                             "<|end_of_text|><|begin_of_text|> <|eot_id|>the<|reserved_special_token_7|>";
    EXPECT_EQ(hugging_face->encode(text, true, true), tiktoken->encode(text, true, true));
    EXPECT_EQ(std::ranges::count(hugging_face->encode(text, true, true), hugging_face->eos_id()), 1);
    EXPECT_EQ(hugging_face->decode(tiktoken->encode(text, true, true)), "<|begin_of_text|>" + text + "<|end_of_text|>");
  }
}

TEST(TrainTokenizer, RecordsThatTrainingSkippedAreCountedAndShown) {
  TemporaryFolder folder;
  std::string records = "{\n{}\n";
  for (int i = 0; i < 200; ++i) records += "{\"text\": \"the cat and the hat and the bat\"}\n";
  TokenizerTraining training = training_into(folder, 520);
  training.dataset.dataset = "text";
  training.dataset.path = folder.write("corpus.jsonl", records);
  training.dataset.bad_record = BadRecord::skip;
  std::ostringstream said;
  train_tokenizer(training, said);
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "corpus.jsonl:1: this line is not JSON");
  EXPECT_PRED_FORMAT2(test::contains, said.str(), "2 bad records were left out");
}

/// A text from which 520 ids can be learned.
std::string few_words() {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the cat and the hat and the bat\n";
  return text;
}

TEST(TrainTokenizer, ADeviceTakesAModelAndAnExistingFileIsReplaced) {
  TemporaryFolder folder;
  TokenizerTraining training = training_into(folder, 520);
  training.dataset = {.dataset = "text", .path = folder.write("corpus.txt", few_words())};
  std::ostringstream said;
  folder.write("made.model", "old");
  train_tokenizer(training, said);
  EXPECT_EQ(read_tiktoken_file(folder / "made.model").size(), 264u);
  training.output = "/dev/null";
  train_tokenizer(training, said);
  // Told before anything is learned: of this text nothing can be.
  training.dataset = {.dataset = "text", .path = folder.write("short.txt", "a")};
  training.output = folder / "made.model/x.model";
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::storage, [&] { train_tokenizer(training, said); }),
                      "made.model");
  training.output = folder / "new/x.model";
  training.hugging_face = folder / "made.model";
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::storage, [&] { train_tokenizer(training, said); }),
                      "name another folder with --hugging-face");
}

TEST(TrainTokenizer, AnOutputNeverFallsOnTheCorpusByWhateverName) {
  TemporaryFolder folder;
  const std::string corpus = folder.write("c/corpus.txt", few_words());
  folder.write("c/other.txt", few_words());
  std::filesystem::create_symlink(corpus, folder / "soft.model");
  std::filesystem::create_hard_link(corpus, folder / "hard.model");
  std::filesystem::create_directory_symlink(folder / "c", folder / "same");
  TokenizerTraining training = training_into(folder, 520);
  training.dataset = {.dataset = "text", .path = corpus};
  std::ostringstream said;
  const auto refused = [&] { return message_of(ExitCode::bad_config, [&] { train_tokenizer(training, said); }); };
  for (const char* name : {"c/corpus.txt", "c/../c/corpus.txt", "same/corpus.txt", "soft.model", "hard.model"}) {
    training.output = folder / name;
    EXPECT_PRED_FORMAT2(test::contains, refused(), "corpus.txt, which the command reads. Name another --output")
        << name;
  }
  training.dataset.path = (folder / "c").string();
  for (const char* name : {"c/new.txt", "same/new.jsonl"}) {
    training.output = folder / name;
    EXPECT_PRED_FORMAT2(test::contains, refused(), "it would become a part of the corpus") << name;
  }
  training.output = folder / "made.model";
  training.hugging_face = folder / "c/hf";  // tokenizer.json would be read as records
  EXPECT_PRED_FORMAT2(test::contains, refused(), "Name a place outside with --hugging-face");
  EXPECT_EQ(read_file(corpus), few_words());
}

TEST(TrainTokenizer, AllThatIsGivenIsReadUnlessItIsBounded) {
  TemporaryFolder folder;
  std::string text;
  while (text.size() < size_t{9} << 20) text += few_words();
  TokenizerTraining training = training_into(folder, 520);
  training.dataset = {.dataset = "text", .path = folder.write("corpus.txt", text)};
  std::ostringstream all, some;
  train_tokenizer(training, all);
  EXPECT_PRED_FORMAT2(test::contains, all.str(), "learned from 9.00 MiB of ");
  EXPECT_EQ(all.str().find("--bytes"), std::string::npos);
  training.most_bytes = 5000;
  train_tokenizer(training, some);
  EXPECT_PRED_FORMAT2(test::contains, some.str(), "learned from 4.00 MiB of ");
  EXPECT_PRED_FORMAT2(test::contains, some.str(), "no more text than that was read (--bytes)");
}

}  // namespace
}  // namespace titan
