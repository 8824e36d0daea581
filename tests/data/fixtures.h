// Small helpers that the tests of the data part share: folders that go away, errors by code and message, tokenizers
// and sources that need no file.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "src/data/tiktoken.h"
#include "support/checkout.h"
#include "support/random_sequence.h"
#include "titan/base/error.h"
#include "titan/data/document_source.h"
#include "titan/data/utf8.h"

namespace titan::test {

/// A folder of one test, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-data-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string string() const { return path_.string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// The error that `act` throws: its message, after checking its exit code.
template <class Act>
std::string message_of(ExitCode code, Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// For EXPECT_PRED_FORMAT2: `text` holds `part`.
inline testing::AssertionResult contains(const char*, const char*, const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

/// 256 bytes, and then these tokens.
inline std::vector<std::string> bytes_and(std::vector<std::string> more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

/// One id per byte; BOS is 256 and EOS 257.
inline std::shared_ptr<const Tokenizer> byte_tokenizer() { return std::make_shared<TiktokenTokenizer>(bytes_and({})); }

/// Documents from memory, in order.
class ListSource : public DocumentSource {
 public:
  explicit ListSource(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  bool next(Document& document) override {
    if (next_ >= static_cast<int64_t>(texts_.size())) return false;
    document.start = {};
    document.start.document = next_;
    document.text = texts_[static_cast<size_t>(next_++)];
    return true;
  }
  void seek(const SourcePosition& start) override { next_ = start.document; }
  std::string reading() const override { return "the list"; }
  std::string description() const override { return "the list"; }
  uint64_t fingerprint() const override { return texts_.size() + 1; }

 private:
  std::vector<std::string> texts_;
  int64_t next_ = 0;
};

/// The corpus that trains the debug model: 1,200 English texts of about 1,200 bytes each.
inline std::string story_corpus() { return (checkout() / "configs/corpora/stories.jsonl").string(); }
inline const std::vector<std::string>& stories() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> all;
    const auto source = open_dataset({.path = story_corpus()});
    for (Document document; source->next(document);) all.push_back(document.text);
    return all;
  }();
  return texts;
}

/// Texts of random lengths in [0, longest], of random letters.
inline std::vector<std::string> random_texts(size_t count, uint32_t longest, uint64_t seed = 1) {
  PhiloxSequence random(seed);
  std::vector<std::string> texts(count);
  for (std::string& text : texts) {
    text.resize(random.below(longest + 1));
    for (char& c : text) c = static_cast<char>('a' + random.below(26));
  }
  return texts;
}

/// `characters` code points from `alphabet`, at random.
inline std::string random_text(const std::u32string& alphabet, size_t characters, uint64_t seed) {
  PhiloxSequence random(seed);
  std::string text;
  for (size_t i = 0; i < characters; ++i)
    append_utf8(alphabet[random.below(static_cast<uint32_t>(alphabet.size()))], text);
  return text;
}

}  // namespace titan::test
