// Uncompressed zip archives for blobs: consecutive entries and 64-bit sizes. The checksum of a large entry follows its
// bytes, so that they are read once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

/// Builds an archive; the caller writes the returned pieces in order.
class ZipWriter {
 public:
  /// A small entry: its header and its bytes.
  std::string entry(std::string_view name, std::string_view bytes);
  /// The header of an entry; the caller writes its `bytes` bytes next.
  std::string begin_entry(std::string_view name, int64_t bytes);
  /// The record after an entry's bytes.
  std::string end_entry(uint32_t checksum);
  /// The end of the archive.
  std::string finish();

 private:
  struct Entry {
    std::string name;
    uint32_t checksum = 0;
    uint64_t bytes = 0;
    uint64_t header_offset = 0;
    bool checksum_behind = false;
  };
  std::string header(const Entry& entry);
  static std::string directory_line(const Entry& entry);

  std::vector<Entry> entries_;
  uint64_t position_ = 0;
};

/// The byte range of an archive's entry in a file.
struct ZipEntry {
  std::string name;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// The entries of the archive in `length` bytes of `file` at `offset`. Throws DamageError if it is malformed,
/// compressed, or an entry is outside it.
std::vector<ZipEntry> read_zip(CheckedReader& file, int64_t offset, int64_t length);

}  // namespace titan
