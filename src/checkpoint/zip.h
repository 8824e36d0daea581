// Uncompressed zip archives, as far as blobs need them: entries one after the other, every size in its 64-bit form, the
// checksum of a large entry behind it so that its bytes are passed over once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/hashed_file.h"

namespace titan {

/// Builds an archive piece by piece; the caller puts the pieces together.
class ZipWriter {
 public:
  /// A small entry: its header and its bytes.
  std::string entry(std::string_view name, std::string_view bytes);
  /// The header of an entry whose `bytes` bytes the caller writes next,
  std::string begin_entry(std::string_view name, int64_t bytes);
  /// and what comes behind them.
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

/// An entry of an archive inside a file: where its bytes are in the file.
struct ZipEntry {
  std::string name;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// The entries of the archive that fills `length` bytes of `file` from `offset` on. Throws DamageError where it is
/// malformed, compressed, or has an entry outside.
std::vector<ZipEntry> read_zip(CheckedReader& file, int64_t offset, int64_t length);

// The CRC-32 of zip archives (polynomial 0x04C11DB7, reflected), at the speed of memory where the processor multiplies
// polynomials: zlib alone would take half of a save's time.

/// Of bytes seen before, whose CRC is `before` (0 for none), followed by `bytes`.
uint32_t zip_checksum(uint32_t before, std::string_view bytes);

}  // namespace titan
