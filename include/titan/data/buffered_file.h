// Sequential reading of one file from any offset, with as much look-ahead as asked for. Offsets are of the unpacked
// bytes, so that a .gz or .zst file and what was packed into it are the same to callers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "titan/data/byte_reader.h"

namespace titan {

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

}  // namespace titan
