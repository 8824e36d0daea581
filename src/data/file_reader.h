// The bytes of one file in order, unpacked when its name ends in .gz or .zst. Callers see unpacked bytes and offsets
// only; a file that is cut off, damaged or shorter than it was when it was opened is an error, never a silent end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

enum class Packing { none, gzip, zstd };
/// By the last extension, whatever its case.
Packing packing_of(const std::filesystem::path& path);

class ByteReader {
 public:
  virtual ~ByteReader() = default;

  /// Fills `into` with the next bytes; fewer than `size` only at the end, where it returns 0 from then on. Throws
  /// Error(bad_data) with the file, what is wrong with it and where.
  virtual size_t read(char* into, size_t size) = 0;

  /// Moves on by so many bytes, or to the end. A packed file is unpacked up to there.
  virtual void skip(int64_t bytes);
};

/// Opens `path` at its beginning. Throws Error(bad_data) with the system's reason.
std::unique_ptr<ByteReader> open_reader(const std::filesystem::path& path);

// A file as it is on disk, and what the readers of packed files are built on. Private to data.

/// Throws Error(bad_data): what is wrong with `path`, and what to do.
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
  int64_t size_ = 0;  // when it was opened
  int64_t offset_ = 0;
};

std::unique_ptr<ByteReader> make_gzip_reader(std::unique_ptr<FileReader> file);
std::unique_ptr<ByteReader> make_zstd_reader(std::unique_ptr<FileReader> file);

// Sequential reading of one file from any offset, with as much look-ahead as asked for. Offsets are of the unpacked
// bytes, so that a .gz or .zst file and what was packed into it are the same to callers.

class BufferedFile {
 public:
  /// Opens `path` at `offset`; a packed file is unpacked up to there. Throws Error(bad_data): see ByteReader.
  BufferedFile(const std::filesystem::path& path, int64_t offset);

  /// The next `wanted` bytes, or more; fewer only at the end of the file. Valid until the next call.
  std::string_view peek(size_t wanted);

  /// The next line with its newline, if it has one; empty at the end of the file, nothing when the line is longer than
  /// `longest` bytes. Valid until the next call.
  std::optional<std::string_view> peek_line(size_t longest);

  /// Moves past bytes that were seen by peek.
  void consume(size_t bytes);

  /// Moves past the next line, however long, without keeping it.
  void skip_line();

  /// Offset of the next byte.
  int64_t offset() const { return offset_; }

 private:
  std::string_view unread() const { return std::string_view(buffer_).substr(begin_); }

  std::unique_ptr<ByteReader> reader_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is unread in buffer_
  int64_t offset_ = 0;
  bool at_end_ = false;
};

// The name that a packed file has once it is unpacked. Private to data.

/// a.jsonl.gz → a.jsonl; a name without a packing's extension is itself.
inline std::filesystem::path unpacked_name(const std::filesystem::path& path) {
  return packing_of(path) == Packing::none ? path : path.parent_path() / path.stem();
}

}  // namespace titan
