// Files that are hashed on their way: block by block while they are written, and block by block while they are read, so
// that a reader of a part checks the part it reads and no more. Hashes are XXH3-128.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

/// Bytes of a block; the last one of a file is shorter.
inline constexpr int64_t kHashBlock = int64_t{8} << 20;

/// A hash as xxhsum prints it: 32 hexadecimal digits.
std::string xxh3_128(std::string_view bytes);

/// What a file must contain.
struct FileRecord {
  int64_t bytes = 0;
  std::vector<std::string> hashes;  // of each block

  bool operator==(const FileRecord&) const = default;
};

/// A record of what `bytes` are.
FileRecord record_of(std::string_view bytes);

/// Bytes are not what they were when they were saved. Another checkpoint may be whole.
class DamageError : public Error {
 public:
  explicit DamageError(const std::string& message) : Error(ExitCode::storage, message) {}
};

/// Writes a new file and hashes it.
class HashingWriter {
 public:
  HashingWriter(Storage& storage, const std::filesystem::path& file);

  void write(std::string_view bytes);
  int64_t position() const { return position_; }
  /// Syncs the file; its record. Nothing may be written after.
  FileRecord finish();

 private:
  void pass_on(std::string_view bytes);
  void close_block();

  struct Hash;
  struct HashDeleter {
    void operator()(Hash* hash) const;
  };

  std::unique_ptr<WritableFile> file_;
  std::unique_ptr<Hash, HashDeleter> hash_;
  std::string buffer_;  // small pieces go to the storage together
  int64_t position_ = 0;
  int64_t in_block_ = 0;
  FileRecord record_;
};

/// Reads parts of a file; with a record, only bytes of blocks whose hash is right come out. Throws DamageError naming
/// the file when it is missing, has another size, or a block differs; StorageError when the medium fails.
class CheckedReader {
 public:
  CheckedReader(Storage& storage, const std::filesystem::path& file, std::optional<FileRecord> record);

  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  void read(int64_t offset, std::span<char> into);
  std::string read(int64_t offset, int64_t count);
  /// Reads what has not been read: the whole file is then known to be right.
  void check_all();
  /// Forgets the bytes that are kept for the next read, for when that is far away: many files may be open.
  void drop_cache() { cache_.clear(); }

 private:
  struct Block {
    int64_t index = -1;
    std::string bytes;
  };

  int64_t block_bytes(int64_t index) const;
  void check(int64_t index, std::string_view bytes);
  const Block& cached(int64_t index);

  std::filesystem::path path_;
  std::optional<FileRecord> record_;
  std::unique_ptr<ReadableFile> file_;
  int64_t size_ = 0;
  std::vector<bool> checked_;
  std::deque<Block> cache_;  // newest first; a tensor's ends are in two blocks, and the next one's in one of them
};

}  // namespace titan
