// A non-owning view of token ids, two or four bytes each.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "titan/text/tokenizer.h"

namespace titan {

struct TokenView {
  const void* data = nullptr;
  size_t size = 0;   ///< tokens
  size_t width = 2;  ///< bytes per token: 2 or 4
  int64_t vocabulary = 0;
  const std::filesystem::path* file = nullptr;  ///< for messages

  /// Appends the ids to `ids`. Throws Error(bad_data) for an id outside the vocabulary: the file was written to after
  /// its checksums were verified.
  void append_to(std::vector<int32_t>& ids) const;
};

// A .bin file of token ids and its index, NAME.bin.idx: written by `titan_train data tokenize`, memory-mapped by
// training. The ids are contiguous, two bytes each if the vocabulary fits, else four; documents are whole, including
// BOS and EOS. The index records the tokenizer, where documents end, and a checksum (XXH3) of every block of ids. It
// has its own checksum and is written last, so a file with an index is complete.
//
// Index, little-endian: "TITANIDX", uint32 version (1), uint32 bytes per token, uint64 vocabulary size, uint64
// fingerprint of the tokenizer, int32 BOS, int32 EOS, uint64 documents, uint64 tokens, uint64 bytes per block, 128
// bytes tokenizer name, then uint64 checksums of the blocks, uint64 ends of the documents (in tokens), uint64 checksum
// of all that.

struct TokenFileFacts {
  int64_t token_bytes = 2;
  int64_t vocabulary = 0;
  uint64_t vocabulary_fingerprint = 0;  ///< Tokenizer::fingerprint
  int32_t bos = 0, eos = 0;
  int64_t documents = 0, tokens = 0;
  std::string tokenizer;  ///< Tokenizer::description

  bool operator==(const TokenFileFacts&) const = default;
};

/// Bytes of ids per checksum. A document's first access checks its blocks: larger ones read more than it needs; smaller
/// ones make the index longer, which is 1/32,768 of the file now. Part of the format.
inline constexpr int64_t kTokenBlock = int64_t{256} << 10;

std::filesystem::path index_path(const std::filesystem::path& bin);

/// The facts of `tokenizer`; documents and tokens are not set.
TokenFileFacts facts_of(const Tokenizer& tokenizer);

/// Writes the index of a finished .bin file. `block_hashes` and the file `ends` (raw uint64) are in the index's format.
/// Throws Error(storage).
void write_token_index(const std::filesystem::path& bin, const TokenFileFacts& facts,
                       const std::vector<uint64_t>& block_hashes, const std::filesystem::path& ends);

/// An open .bin file, memory-mapped. Not thread-safe.
class TokenFile {
 public:
  /// Opens `bin` and its index and validates the index. Throws Error(bad_data): missing, damaged or truncated index, or
  /// a file size that differs from the index.
  explicit TokenFile(const std::filesystem::path& bin);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const TokenFileFacts& facts() const { return facts_; }

  /// Ids of document `index`, valid while the file is open. Verifies a block's checksum at its first access. Throws
  /// Error(bad_data): a damaged block, or a file that was written to since it was opened.
  TokenView document(int64_t index);

 private:
  class Map;
  using Clock = std::chrono::steady_clock;
  // A check for each document slowed loading; docs/dropped.md has the number.
  static constexpr std::chrono::milliseconds kCheckHolds{1};

  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const;
  [[noreturn]] void fail_without_index() const;
  void read_index();
  void check_ends() const;
  /// Throws if the size or the time of change of the file or its index is another. Skipped for kCheckHolds after a
  /// check, because system calls per document would slow down loading.
  void check_unchanged();
  void check_blocks(int64_t begin, int64_t end);

  std::filesystem::path path_;
  TokenFileFacts facts_;
  std::unique_ptr<Map> ids_, index_;
  const uint64_t* block_hashes_ = nullptr;
  const uint64_t* ends_ = nullptr;
  std::vector<bool> checked_;              // per block
  Clock::time_point unchanged_seen_ = {};  // time of the last check
};

// The fixed-size header of the index of a .bin file. Private to corpus.

struct TokenIndexHeader {
  static constexpr char kMagic[9] = "TITANIDX";
  static constexpr uint32_t kVersion = 1;

  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocabulary;
  uint64_t vocabulary_fingerprint;
  int32_t bos, eos;
  uint64_t documents;
  uint64_t tokens;
  uint64_t block_bytes;
  char tokenizer[128];
};
static_assert(sizeof(TokenIndexHeader) == 192);

inline uint64_t blocks_of(uint64_t bytes, uint64_t block) { return (bytes + block - 1) / block; }

}  // namespace titan
