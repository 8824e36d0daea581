// Sequential reading of one file from any offset, with as much look-ahead as asked for.
// The place where a decompressing reader of .gz or .zst files would stand in: callers see bytes and offsets only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace titan {

class BufferedFile {
 public:
  /// Opens `path` at `offset`. Throws Error(bad_data) with the system's reason.
  BufferedFile(const std::filesystem::path& path, int64_t offset);
  ~BufferedFile();
  BufferedFile(const BufferedFile&) = delete;
  BufferedFile& operator=(const BufferedFile&) = delete;

  /// The next `wanted` bytes, or more; fewer only at the end of the file. Valid until the next call.
  std::string_view peek(size_t wanted);

  /// The next line with its newline, if it has one; empty at the end of the file. Valid until the next call.
  std::string_view peek_line();

  /// Moves past bytes that were seen by peek.
  void consume(size_t bytes);

  /// Offset of the next byte.
  int64_t offset() const { return offset_; }

 private:
  std::string_view unread() const { return std::string_view(buffer_).substr(begin_); }

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
  size_t begin_ = 0;  // of what is unread in buffer_
  int64_t offset_ = 0;
  bool at_end_ = false;
};

}  // namespace titan
