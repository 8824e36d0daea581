// Sequential reading of one file, decompressed if its name ends in .gz or .zst. Offsets count decompressed bytes. A
// file that is truncated, damaged or shorter than when it was opened is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

enum class Packing { none, gzip, zstd };
/// By the last extension, ignoring case.
Packing packing_of(const std::filesystem::path& path);

class ByteReader {
 public:
  virtual ~ByteReader() = default;

  /// Fills `into` with the next bytes; returns fewer than `size` only at the end, then 0. Throws Error(bad_data) with
  /// the file, the problem and its position.
  virtual size_t read(char* into, size_t size) = 0;

  /// Skips `bytes` bytes, or to the end. A compressed file is decompressed up to there.
  virtual void skip(int64_t bytes);
};

/// Opens `path` at its beginning. Throws Error(bad_data) with the system's reason.
std::unique_ptr<ByteReader> open_reader(const std::filesystem::path& path);

// A file's raw bytes, and helpers for the readers of compressed files. Private to corpus.

/// Throws Error(bad_data) with the problem of `path` and the remedy.
[[noreturn]] void fail_reading(const std::filesystem::path& path, const std::string& what);

class FileReader : public ByteReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader() override;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  size_t read(char* into, size_t size) override;
  void skip(int64_t bytes) override;

  const std::filesystem::path& path() const { return path_; }
  int64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;  // when opened
  int64_t offset_ = 0;
};

std::unique_ptr<ByteReader> make_gzip_reader(std::unique_ptr<FileReader> file);
std::unique_ptr<ByteReader> make_zstd_reader(std::unique_ptr<FileReader> file);

// Sequential reading of one file from any offset, with unlimited look-ahead. Offsets count decompressed bytes: a
// compressed file and its contents look the same to callers.

class BufferedFile {
 public:
  /// Opens `path` at `offset`; a compressed file is decompressed up to there. Throws Error(bad_data): see ByteReader.
  BufferedFile(const std::filesystem::path& path, int64_t offset);

  /// The next `wanted` or more bytes; fewer only at the end of the file. Valid until the next call.
  std::string_view peek(size_t wanted);

  /// The next line, with its newline if it has one; empty at the end of the file, nothing if the line is longer than
  /// `longest` bytes. Valid until the next call.
  std::optional<std::string_view> peek_line(size_t longest);

  /// Skips bytes returned by peek.
  void consume(size_t bytes);

  /// Skips the next line, of any length, without storing it.
  void skip_line();

  /// Offset of the next byte.
  int64_t offset() const { return offset_; }

 private:
  std::string_view unread() const { return std::string_view(buffer_).substr(begin_); }

  std::unique_ptr<ByteReader> reader_;
  std::string buffer_;
  size_t begin_ = 0;  // of the unread bytes in buffer_
  int64_t offset_ = 0;
  bool at_end_ = false;
};

// The name of a compressed file's contents. Private to corpus.

/// a.jsonl.gz → a.jsonl; a name without a compression extension is unchanged.
inline std::filesystem::path unpacked_name(const std::filesystem::path& path) {
  return packing_of(path) == Packing::none ? path : path.parent_path() / path.stem();
}

}  // namespace titan
