#include "titan/cli/commands.h"

#include <gtest/gtest.h>

#include <sstream>

#include "run.h"
#include "support/checkout.h"
#include "support/job.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

const std::string kModel = checkout() / "configs/tokenizers/stories.model";

std::string tokenizer(const std::vector<std::string>& words, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out;
  run_tokenizer_command(words, in, out);
  return out.str();
}

TEST(TokenizerCommand, DecodeGivesBackWhatWasEncoded) {
  for (const std::string text : {"Once upon a time there was a fox.\n", "", "  \n\t ", "naïve 🦔 <|end_of_text|>"}) {
    EXPECT_EQ(tokenizer({"decode", kModel}, tokenizer({"encode", kModel}, text)), text);
  }
}

TEST(TokenizerCommand, AFileOfAnotherKindOrOfACorpusSizeIsRefusedBeforeItIsEncoded) {
  const TestFolder folder;
  const auto refusal = [](const std::string& file) -> std::string {
    try {
      return tokenizer({"encode", kModel, file});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
  };
  EXPECT_NE(refusal(folder.write("text.txt", std::string("\x1f\x8b\x08\0rest", 8))).find("this is gzip data"),
            std::string::npos);
  const std::string large = folder.write("large.txt", "");
  std::filesystem::resize_file(large, int64_t{1} << 40);  // sparse: no more than the limit is read
  EXPECT_NE(refusal(large).find("titan_train data tokenize"), std::string::npos);
}

TEST(TokenizerCommand, ATrainedTokenizerIsUsableAndTheSameEveryTime) {
  const TestFolder folder;
  const std::string corpus = checkout() / "configs/corpora/stories.jsonl";
  const std::vector<std::string> words{"train",         "--dataset-path", corpus, "--vocab-size=600",
                                       "--bytes=50000", "--output"};
  for (const char* name : {"a.model", "b.model"}) {
    std::vector<std::string> all = words;
    all.push_back(folder / name);
    EXPECT_TRUE(holds(tokenizer(all), "600 in all"));
  }
  EXPECT_EQ(read_file(folder / "a.model"), read_file(folder / "b.model"));
  const std::string text = "The fox went home.";
  EXPECT_EQ(tokenizer({"decode", folder / "a.model"}, tokenizer({"encode", folder / "a.model"}, text)), text);
}

}  // namespace
}  // namespace titan
