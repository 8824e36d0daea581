#include "src/text/tiktoken.h"

#include "support/files.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

using test::bytes_and;
using test::message_of;
using test::TemporaryFolder;

/// The text of a good model file, to be damaged.
std::string model_text(const TemporaryFolder& folder, const std::vector<std::string>& more = {}) {
  write_tiktoken_file(folder / "good.model", bytes_and(more));
  return read_file(folder / "good.model");
}

std::string read_error(const TemporaryFolder& folder, const std::string& text) {
  std::string path = folder.write("bad.model", text);
  return message_of(ExitCode::bad_data, [&] { read_tiktoken_file(path); });
}

TEST(TiktokenFile, WhatIsWrittenIsReadBack) {
  TemporaryFolder folder;
  auto tokens = bytes_and({"ab", "abc", "\xF0\x9F\x99\x82", std::string("\0\xFF", 2)});
  write_tiktoken_file(folder / "some.model", tokens);
  EXPECT_EQ(read_tiktoken_file(folder / "some.model"), tokens);
}

TEST(TiktokenFile, LinesMayComeInAnyOrderWithBlankLinesAndWindowsLineEndings) {
  TemporaryFolder folder;
  std::string text = model_text(folder);
  size_t first_end = text.find('\n') + 1;
  std::string shuffled = "\r\n" + text.substr(first_end) + text.substr(0, first_end - 1) + "\r\n\r\n";
  EXPECT_EQ(read_tiktoken_file(folder.write("shuffled.model", shuffled)), bytes_and({}));
}

TEST(TiktokenFile, OfTokenizerTrainIsKnownByItsEmptyLastLine) {
  TemporaryFolder folder;
  const std::string text = model_text(folder);
  const auto notices = [&](const std::string& content, std::vector<std::string> tokens = bytes_and({})) {
    return check_is_llama3(folder.write("some.model", content), tokens).size();
  };
  ASSERT_TRUE(text.ends_with(" 255\n\n"));
  EXPECT_EQ(notices(text), 0u);
  EXPECT_EQ(notices(text.substr(0, text.size() - 1)), 1u);
  std::vector<std::string> other = bytes_and({});
  std::swap(other[0], other['!']);
  EXPECT_EQ(notices(text, other), 1u);
}

TEST(TiktokenFile, BrokenBase64IsNamedWithItsLine) {
  TemporaryFolder folder;
  for (const char* bad : {"Y*== 256", "YWI 256", "YWI=", "YWI= x", "YWI= -3", "= 256", "YWI= 256 7"}) {
    std::string message = read_error(folder, model_text(folder) + bad + "\n");
    EXPECT_PRED_FORMAT2(test::contains, message, "bad.model:258: this is not a base64 token");
  }
}

}  // namespace
}  // namespace titan
