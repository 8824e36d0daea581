// File access of checkpoints: the storage interface with its POSIX implementation, and files that are hashed when
// written and verified when read. Tests replace the storage to make each call fail.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/base/error.h"

namespace titan {

/// A storage call failed (exit code 73): "cannot WHAT PATH: reason". `reason` is the system's error number.
class StorageError : public Error {
 public:
  StorageError(std::string_view what, const std::filesystem::path& path, int reason);
  int reason() const { return reason_; }

 private:
  int reason_;
};

struct StorageEntry {
  std::string name;
  bool is_folder = false;  // or a link to one
  bool is_link = false;
};

/// A file being written from its beginning. Not synced until `sync` has returned; closed by the destructor.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends all of `bytes`, in as many partial writes as needed.
  void write(std::string_view bytes);
  /// Makes the bytes written so far durable (fsync).
  virtual void sync() = 0;

 protected:
  /// One write call: appends the first n > 0 bytes of `bytes` and returns n.
  virtual int64_t write_some(std::string_view bytes) = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on; throws if the file ends earlier.
  virtual void read(int64_t offset, std::span<char> into) = 0;
};

/// Every call throws StorageError on failure. Thread-safe, except for concurrent calls on one file.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Creates the folder and its parents, durably; an existing folder is fine.
  virtual void make_folders(const std::filesystem::path& folder) = 0;
  /// Creates a file; it must not exist.
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path& file) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path& file) = 0;
  /// Sorted by name; empty if the folder does not exist.
  virtual std::vector<StorageEntry> list(const std::filesystem::path& folder) = 0;
  /// Renames a file or folder within its parent, atomically.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Removes a file or an empty folder.
  virtual void remove(const std::filesystem::path& path) = 0;
  /// Makes the names in the folder durable (fsync of the folder).
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
  /// Free bytes of the file system of `folder`.
  virtual int64_t free_bytes(const std::filesystem::path& folder) = 0;

  /// Reads a whole small file.
  std::string read_all(const std::filesystem::path& file);
  /// Writes and syncs a new file.
  void write_all(const std::filesystem::path& file, std::string_view bytes);
  /// Makes the names of `folder` and of its parents durable, since another program may have created them without a
  /// sync. Once per folder; one thread at a time.
  void sync_way_to(const std::filesystem::path& folder);
  /// Removes the folder and its contents; links are removed, not followed. A missing folder is fine.
  void remove_folder(const std::filesystem::path& folder);

 protected:
  std::set<std::filesystem::path> synced_ways_;  // folders whose names are durable
};

/// The POSIX implementation.
std::unique_ptr<Storage> make_posix_storage();

// Hashed files: XXH3-128 of each block, computed while writing and checked while reading, so that a partial read
// verifies just its own blocks.

/// Bytes of a block; the last one of a file is shorter.
inline constexpr int64_t kHashBlock = int64_t{8} << 20;

/// A hash as xxhsum prints it: 32 hexadecimal digits.
std::string xxh3_128(std::string_view bytes);

/// A file's size and hashes.
struct FileRecord {
  int64_t bytes = 0;
  std::vector<std::string> hashes;  // of each block

  bool operator==(const FileRecord&) const = default;
};

/// The record of `bytes`.
FileRecord record_of(std::string_view bytes);

/// The bytes differ from what was saved. Another checkpoint may be complete.
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
  /// Syncs the file and returns its record. Nothing may be written afterwards.
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
  std::string buffer_;  // collects small writes
  int64_t position_ = 0;
  int64_t in_block_ = 0;
  FileRecord record_;
};

/// Reads parts of a file; with a record, every block is verified before its bytes are returned. Throws DamageError
/// naming the file if it is missing, has another size, or a block differs; StorageError if the storage fails.
class CheckedReader {
 public:
  CheckedReader(Storage& storage, const std::filesystem::path& file, std::optional<FileRecord> record);

  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  void read(int64_t offset, std::span<char> into);
  std::string read(int64_t offset, int64_t count);
  /// Reads and verifies all blocks not read yet.
  void check_all();
  /// Frees the cached blocks, because many files may be open.
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
  std::deque<Block> cache_;  // newest first; neighbouring tensors share blocks
};

}  // namespace titan
