// Damaged inputs of up to 64 KB for every reader of a corpus: no crash, one clear error or documents, little memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <sstream>

#include "src/corpus/text_files.h"
#include "src/corpus/token_source.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/fuzz_time.h"
#include "support/packed.h"
#include "support/random_sequence.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"
#include "titan/corpus/token_file.h"
#include "titan/corpus/tokenize.h"

namespace titan {
namespace {

using test::TemporaryFolder;

constexpr size_t kLargestInput = 64 << 10;
constexpr int64_t kMostMemory = int64_t{1} << 30;

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// A few bytes flipped, cut, repeated, inserted or overwritten.
std::string damaged(std::string bytes, PhiloxSequence& random) {
  const uint32_t changes = 1 + random.below(4);
  for (uint32_t i = 0; i < changes; ++i) {
    const auto size = static_cast<uint32_t>(bytes.size());
    const uint32_t at = random.below(size + 1);
    switch (random.below(6)) {
      case 0:
        if (at < size) bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, bytes.substr(random.below(size + 1), random.below(2000)));
        break;
      case 3: {
        static constexpr const char* kPieces[] = {
            "\"",      "\\", "\n",   "{",     "}",          "[",        "\\ud800",
            "\\u0000", "\r", "\xFF", "1e999", "{\"text\":", "\0\0\0\0", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"};
        bytes.insert(at, kPieces[random.below(std::size(kPieces))]);
        break;
      }
      case 4:
        for (uint32_t j = at; j < std::min(size, at + 8); ++j) bytes[j] = static_cast<char>(random.next());
        break;
      default:
        bytes.insert(at, std::string(random.below(3000), bytes.empty() ? '[' : bytes[random.below(size)]));
    }
  }
  bytes.resize(std::min(bytes.size(), kLargestInput));
  return bytes;
}

/// Damages `whole` again and again and hands it to `read`.
void fuzz(const std::vector<std::string>& whole, const std::function<void(const std::string&)>& read) {
  const auto end = std::chrono::steady_clock::now() + test::fuzz_time();
  PhiloxSequence random(17);
  int64_t errors = 0, inputs = 0;
  while (std::chrono::steady_clock::now() < end || inputs < 20) {
    const std::string input = damaged(whole[random.below(static_cast<uint32_t>(whole.size()))], random);
    ++inputs;
    try {
      read(input);
    } catch (const Error& error) {
      ++errors;
      const std::string message = error.what();
      ASSERT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::bad_data)) << message;
      ASSERT_GT(message.size(), 30u);
      ASSERT_LT(message.size(), 1000u);
      ASSERT_EQ(message.find('\n'), message.npos) << message;
    }
  }
  EXPECT_GT(errors, 0);
  EXPECT_LT(peak_bytes(), kMostMemory);
}

std::vector<std::string> jsonl() {
  std::string lines;
  for (const std::string& text : test::random_texts(60, 300)) lines += "{\"id\": 7, \"text\": \"" + text + "\\n\"}\n";
  return {lines, "{\"a\": [{}, [1.5e3, null, true]], \"text\": \"\\ud83e\\udd94 \\u00e9\"}\r\n", "\n\n", ""};
}

/// Reads `bytes` as a file of this name, once through and once from the middle.
void read_as(const TemporaryFolder& folder, const std::string& name, const std::string& bytes) {
  const std::string path = folder.write(name, bytes);
  TextFileSource source(path, "text", bytes.size() % 2 == 0 ? BadRecord::skip : BadRecord::error);
  std::vector<SourcePosition> starts;
  for (Document document; source.next(document);) starts.push_back(document.start);
  if (starts.empty()) return;
  source.seek(starts[starts.size() / 2]);
  Document document;
  ASSERT_TRUE(source.next(document));
}

TEST(FuzzReaders, Jsonl) {
  TemporaryFolder folder;
  fuzz(jsonl(), [&](const std::string& bytes) { read_as(folder, "a.jsonl", bytes); });
}

TEST(FuzzReaders, Gzip) {
  TemporaryFolder folder;
  std::vector<std::string> whole;
  for (const std::string& bytes : jsonl()) whole.push_back(test::gzip(bytes) + test::gzip(bytes));
  whole.push_back(test::gzip(std::string(40 << 20, ' ')));
  fuzz(whole, [&](const std::string& bytes) { read_as(folder, "a.jsonl.gz", bytes); });
}

TEST(FuzzReaders, Zstd) {
  TemporaryFolder folder;
  std::vector<std::string> whole;
  for (const std::string& bytes : jsonl()) whole.push_back(test::zstd(bytes) + test::zstd(bytes));
  whole.push_back(test::zstd(std::string(40 << 20, 'x')));
  fuzz(whole, [&](const std::string& bytes) { read_as(folder, "a.txt.zst", bytes); });
}

TEST(FuzzReaders, GivenIds) {
  TemporaryFolder folder;
  std::string lines;
  PhiloxSequence random(3);
  for (int line = 0; line < 60; ++line) {
    lines += "{\"id\": 7, \"ids\": [1";
    for (uint32_t i = random.below(200); i > 0; --i) lines += ", " + std::to_string(random.below(300));
    lines += "]}\n";
  }
  Tokenization tokenization;
  tokenization.ids = GivenIds{/*vocabulary=*/300, /*bos=*/1, /*eos=*/2, ""};
  tokenization.output = folder / "a.bin";
  tokenization.threads = 1;
  tokenization.overwrite = true;
  fuzz({lines, "{\"ids\": []}\r\n{\"ids\": [2, 5], \"text\": [{}]}"}, [&](const std::string& bytes) {
    tokenization.dataset = {.dataset = "text", .path = folder.write("a.jsonl", bytes), .text_field = "ids"};
    tokenization.dataset.bad_record = bytes.size() % 2 == 0 ? BadRecord::skip : BadRecord::error;
    std::ostringstream ignored;
    tokenize_corpus(tokenization, ignored);
    TokenFileSource source("a.bin", {folder / "a.bin"});
    std::vector<int32_t> all;
    for (Document document; source.next(document);) document.tokens->append_to(all);
    ASSERT_TRUE(std::ranges::all_of(all, [](int32_t id) { return id >= 0 && id < 300; }));
  });
}

/// What the index's checksum protects is read as well when it is right.
std::string with_right_checksum(std::string index) {
  if (index.size() < sizeof(uint64_t)) return index;
  const size_t body = index.size() - sizeof(uint64_t);
  const uint64_t checksum = XXH3_64bits(index.data(), body);
  std::memcpy(index.data() + body, &checksum, sizeof checksum);
  return index;
}

TEST(FuzzReaders, Bin) {
  TemporaryFolder folder;
  Tokenization tokenization;
  tokenization.dataset = {.dataset = "text", .path = folder.write("a.jsonl", jsonl()[0])};
  tokenization.tokenizer = checkout() / "configs/tokenizers/stories.model";
  tokenization.output = folder / "a.bin";
  std::ostringstream ignored;
  tokenize_corpus(tokenization, ignored);
  const std::string ids = read_file(folder / "a.bin"), index = read_file(folder / "a.bin.idx");
  int64_t turn = 0;
  fuzz({ids, index}, [&](const std::string& bytes) {
    ++turn;
    const bool is_index = bytes.starts_with("TITAN");
    folder.write("b.bin", is_index ? ids : bytes);
    folder.write("b.bin.idx", is_index ? (turn % 2 == 0 ? with_right_checksum(bytes) : bytes) : index);
    TokenFileSource source("b.bin", {folder / "b.bin"});
    std::vector<int32_t> all;
    for (Document document; source.next(document);) document.tokens->append_to(all);
  });
}

}  // namespace
}  // namespace titan
