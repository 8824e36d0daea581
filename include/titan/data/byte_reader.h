// The bytes of one file in order, unpacked when its name ends in .gz or .zst. Callers see unpacked bytes and offsets
// only; a file that is cut off, damaged or shorter than it was when it was opened is an error, never a silent end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

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

}  // namespace titan
