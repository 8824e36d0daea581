#include "titan/cli/tokenizer_command.h"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "run.h"
#include "support/checkout.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "train/job.h"

namespace titan {
namespace {

const std::string kModel = checkout() / "configs/tokenizers/stories.model";

std::string tokenizer(const std::vector<std::string>& words, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out;
  run_tokenizer_command(words, in, out);
  return out.str();
}

/// The error that these words end with.
std::string refused(ExitCode code, const std::vector<std::string>& words, const std::string& input = "") {
  try {
    tokenizer(words, input);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(TokenizerCommand, DecodeGivesBackWhatWasEncoded) {
  for (const std::string text : {"Once upon a time there was a fox.\n", "", "  \n\t ", "naïve 🦔 <|end_of_text|>"}) {
    EXPECT_EQ(tokenizer({"decode", kModel}, tokenizer({"encode", kModel}, text)), text);
  }
}

TEST(TokenizerCommand, EncodeReadsAFileOrStandardInputAndFramesWhereAsked) {
  const TestFolder folder;
  const std::string file = folder.write("story.txt", "A fox.");
  const std::string plain = tokenizer({"encode", kModel}, "A fox.");
  EXPECT_EQ(tokenizer({"encode", kModel, file}), plain);
  EXPECT_EQ(tokenizer({"encode", kModel, "-"}, "A fox."), plain);
  EXPECT_EQ(tokenizer({"encode", kModel, "--bos", "--eos"}, "A fox."),
            "1792 " + plain.substr(0, plain.size() - 1) + " 1793\n");
}

TEST(TokenizerCommand, InfoTellsKindSizeAndSpecialIds) {
  const std::string shown = tokenizer({"info", kModel});
  for (const char* part : {"tiktoken", "2,048", "1792 <|begin_of_text|>", "1793 <|end_of_text|>"}) {
    EXPECT_TRUE(holds(shown, part));
  }
}

TEST(TokenizerCommand, ATrainedTokenizerIsUsableAndTheSameEveryTime) {
  const TestFolder folder;
  const std::vector<std::string> words{"train", "--vocab-size=600", "--bytes=50000", "--output"};
  for (const char* name : {"a.model", "b.model"}) {
    std::vector<std::string> all = words;
    all.push_back(folder / name);
    EXPECT_TRUE(holds(tokenizer(all), "600 in all"));
  }
  EXPECT_EQ(read_file(folder / "a.model"), read_file(folder / "b.model"));
  const std::string text = "The fox went home.";
  EXPECT_EQ(tokenizer({"decode", folder / "a.model"}, tokenizer({"encode", folder / "a.model"}, text)), text);
}

TEST(TokenizerCommand, AWrongCommandLineIsAConfigErrorThatNamesTheHelp) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"explode"},
                                                {"train"},
                                                {"encode"},
                                                {"encode", kModel, "a", "b"},
                                                {"train", "--output=x", "--vocab-size=many"},
                                                {"train", "--output=x", "--vocab-size=600", "--bad-record=maybe"},
                                                {"encode", kModel, "--measure=-1"},
                                                {"train", "--output=x", "--vocab-size=600", "--bytes=0"}}) {
    EXPECT_TRUE(holds(refused(ExitCode::bad_config, words), "titan_train tokenizer --help"));
  }
}

TEST(TokenizerCommand, APathSaysByItselfThatTextIsRead) {
  const TestFolder folder;
  const std::string corpus = folder.write("none.txt", "");
  const std::vector<std::string> words{"train", "--vocab-size=600", "--output", folder / "x", "--dataset-path", corpus};
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, words), "none.txt: the file is empty"));
  std::vector<std::string> stories = words;
  stories.emplace_back("--dataset=stories");
  EXPECT_TRUE(holds(refused(ExitCode::bad_config, stories), "stories are made and not read: --dataset-path"));
}

TEST(TokenizerCommand, WhatMendsAnErrorIsSaidInTheCommandsOwnOptions) {
  const TestFolder folder;
  const std::string bad = folder.write("bad.jsonl", "{\n");
  const std::string message =
      refused(ExitCode::bad_data, {"train", "--vocab-size=600", "--output", folder / "x", "--dataset-path", bad});
  EXPECT_TRUE(holds(message, "name another field with --text-field, or leave such records out with --bad-record skip"));
  EXPECT_TRUE(
      holds(refused(ExitCode::bad_data, {"train", "--vocab-size=600", "--output", folder / "x", "--dataset=c4"}),
            "dataset c4 needs --dataset-path: "));
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"info", folder / "none"}), "Set model to a tokenizer file"));
}

TEST(TokenizerCommand, ANumberBelowTheLeastIsToldWithThatLeast) {
  for (const std::string number : {"0", "-7", "-99999999999999999999"}) {
    EXPECT_TRUE(holds(refused(ExitCode::bad_config, {"train", "--output=x", "--vocab-size=600", "--bytes=" + number}),
                      "--bytes: " + number + " is less than 1 ("));
  }
}

TEST(TokenizerCommand, HelpOfASubcommandIsPrintedNotThrown) {
  EXPECT_TRUE(holds(tokenizer({"--help"}), "encode"));
  EXPECT_TRUE(holds(tokenizer({"train", "--help"}), "--vocab-size"));
}

TEST(TokenizerCommand, FilesThatCannotBeUsedAreDataErrorsThatNameThem) {
  const TestFolder folder;
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"info", folder / "none.model"}), "none.model"));
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"encode", kModel, folder / "none.txt"}), "none.txt"));
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"encode", kModel, folder.path().string()}), "Is a directory"));
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"decode", kModel}, "12 x7"), "\"x7\" is no token id"));
  EXPECT_TRUE(holds(refused(ExitCode::bad_data, {"decode", kModel}, "2048"), "0 to 2047"));
}

}  // namespace
}  // namespace titan
