// Ids as files store them: their integer type, views of them, what files whose documents are known have in common, and
// this program's own files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/corpus/corpus_record.h"
#include "titan/text/tokenizer.h"

namespace titan {

// Ids as a file stores them. Everywhere else in the program ids are int32.

/// Integer types of stored ids. This program writes uint16 and uint32; other programs write all of them.
enum class IdType { uint8, int8, uint16, int16, uint32, int32, int64 };

/// Bytes of one id.
int64_t size_of(IdType type);
/// As NumPy names it: "uint16".
std::string_view name_of(IdType type);

/// Ids are int32, so every vocabulary is at most this large.
inline constexpr int64_t kMostIds = int64_t{1} << 31;

struct TokenView {
  const void* data = nullptr;  ///< aligned for `type`
  size_t size = 0;             ///< ids
  IdType type = IdType::uint16;
  int64_t vocabulary = 0;                       ///< kMostIds: unknown
  const std::filesystem::path* file = nullptr;  ///< for messages
  /// Place of the first id in its file, if the file has no checksums: a bad id was then written by the file's maker.
  /// -1: the ids were verified, and a bad id was written later.
  int64_t unverified_place = -1;

  /// The id at `index` as it is stored, also if no vocabulary has it.
  int64_t at(size_t index) const;

  /// The ids outside the vocabulary: how many there are, and the index of the first.
  struct Outside {
    int64_t count = 0;
    size_t first = 0;
  };
  Outside outside() const;

  /// Appends the ids to `ids`. Throws Error(bad_data) for an id outside the vocabulary.
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
  int64_t vocabulary = 0;               ///< 0: the file does not say
  uint64_t vocabulary_fingerprint = 0;  ///< Tokenizer::fingerprint
  int32_t bos = 0, eos = 0;
  int64_t documents = 0, tokens = 0;
  std::string tokenizer;  ///< Tokenizer::description; of a file of another program, the name in it, if any

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

class MappedIds;
class EntryIndex;

/// An open file of ids with document boundaries, memory-mapped. Not thread-safe.
class IdFile {
 public:
  explicit IdFile(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~IdFile() = default;
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const TokenFileFacts& facts() const { return facts_; }

  /// Ids of document `index`, valid while the file is open; their vocabulary is unknown if the file does not say it.
  /// Throws Error(bad_data): damaged ids, or a file that was written to since it was opened.
  virtual TokenView document(int64_t index) = 0;

  virtual IdType type() const = 0;
  /// The format in words, the same for all files of a format: "Megatron ids".
  virtual std::string format() const = 0;
  /// What identifies the contents: the file and, of other programs, its index, with their sizes.
  virtual CorpusFiles files() const = 0;
  /// The number of entries of Megatron-LM's index; nothing for other formats.
  virtual std::optional<int64_t> entries() const { return std::nullopt; }
  /// The entries themselves; nullptr for other formats.
  virtual EntryIndex* entry_index() { return nullptr; }
  /// A warning for the user about this file; usually none.
  virtual std::string warning() const { return {}; }
  /// The ids of a file that has no checksums and does not say its vocabulary; nullptr for this program's own.
  virtual MappedIds* unverified_ids() { return nullptr; }

 protected:
  std::filesystem::path path_;
  TokenFileFacts facts_;
};

class ChangeWatch;
class MappedFile;

/// A .bin file of this program.
class TokenFile : public IdFile {
 public:
  /// Opens `bin` and its index and validates the index. Throws Error(bad_data): missing, damaged or truncated index, or
  /// a file size that differs from the index.
  explicit TokenFile(const std::filesystem::path& bin);
  ~TokenFile() override;

  /// Verifies a block's checksum at its first access.
  TokenView document(int64_t index) override;

  IdType type() const override { return facts_.token_bytes == 2 ? IdType::uint16 : IdType::uint32; }
  std::string format() const override { return "ids of titan_train data tokenize"; }
  CorpusFiles files() const override { return {{path_, facts_.tokens * facts_.token_bytes}}; }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const;
  void read_index();
  void check_ends() const;
  void check_blocks(int64_t begin, int64_t end);

  std::unique_ptr<MappedFile> ids_, index_;
  std::unique_ptr<ChangeWatch> watch_;
  const uint64_t* block_hashes_ = nullptr;
  const uint64_t* ends_ = nullptr;
  std::vector<bool> checked_;  // per block
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
