#include "zip.h"

#include <libdeflate.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "titan/base/file_kind.h"

namespace titan {
namespace {

// Signatures, layout and limits are those of the format (PKWARE's APPNOTE.TXT).
constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryLine = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50, kChecksumBehind = 0x08074b50;
// Says that the 64-bit field has the value. Local headers always say so: they have one length, whatever the sizes.
constexpr uint32_t kIn64Bits = 0xFFFFFFFF;
// Version 4.5 of the format is the first with 64-bit sizes.
constexpr uint16_t kVersion = 45, kUtf8Names = 0x800, kChecksumFollows = 0x8, kFirstOf1980 = 0x21, kExtra64 = 1;
constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kLineBytes = 46, kHeaderBytes = 30;
constexpr size_t kLongestComment = 0xFFFF;

/// Little-endian fields, one after the other.
template <class... Fields>
std::string packed(Fields... fields) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&fields), sizeof fields), ...);
  return bytes;
}

template <class Field>
Field field_at(std::string_view bytes, size_t offset) {
  if (offset + sizeof(Field) > bytes.size()) throw DamageError("a zip record ends too early");
  Field field;
  std::memcpy(&field, bytes.data() + offset, sizeof field);
  return field;
}

}  // namespace

std::string ZipWriter::header(const Entry& entry) {
  const uint16_t flags = kUtf8Names | (entry.checksum_behind ? kChecksumFollows : 0);
  std::string bytes = packed(kLocalHeader, kVersion, flags, uint16_t{0}, uint16_t{0}, kFirstOf1980, entry.checksum,
                             kIn64Bits, kIn64Bits, static_cast<uint16_t>(entry.name.size()), uint16_t{20});
  return bytes + entry.name + packed(kExtra64, uint16_t{16}, entry.bytes, entry.bytes);
}

std::string ZipWriter::entry(std::string_view name, std::string_view bytes) {
  entries_.push_back(
      {std::string(name), libdeflate_crc32(0, bytes.data(), bytes.size()), bytes.size(), position_, false});
  std::string all = header(entries_.back());
  all += bytes;
  position_ += all.size();
  return all;
}

std::string ZipWriter::begin_entry(std::string_view name, int64_t bytes) {
  entries_.push_back({std::string(name), 0, static_cast<uint64_t>(bytes), position_, true});
  std::string begin = header(entries_.back());
  position_ += begin.size() + static_cast<uint64_t>(bytes);
  return begin;
}

std::string ZipWriter::end_entry(uint32_t checksum) {
  Entry& entry = entries_.back();
  entry.checksum = checksum;
  std::string end = packed(kChecksumBehind, checksum, entry.bytes, entry.bytes);
  position_ += end.size();
  return end;
}

std::string ZipWriter::directory_line(const Entry& entry) {
  const uint16_t flags = kUtf8Names | (entry.checksum_behind ? kChecksumFollows : 0);
  const bool far = entry.header_offset >= kIn64Bits;  // the format has the 64-bit field only where the other is full
  const uint16_t extra = far ? 24 : 16;
  std::string line = packed(kDirectoryLine, kVersion, kVersion, flags, uint16_t{0}, uint16_t{0}, kFirstOf1980,
                            entry.checksum, kIn64Bits, kIn64Bits, static_cast<uint16_t>(entry.name.size()),
                            static_cast<uint16_t>(extra + 4), uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0},
                            far ? kIn64Bits : static_cast<uint32_t>(entry.header_offset));
  line += entry.name + packed(kExtra64, extra, entry.bytes, entry.bytes);
  return far ? line + packed(entry.header_offset) : line;
}

std::string ZipWriter::finish() {
  std::string directory;
  for (const Entry& entry : entries_) directory += directory_line(entry);
  const uint64_t count = entries_.size(), size = directory.size();
  const auto short_count = static_cast<uint16_t>(std::min<uint64_t>(count, 0xFFFF));
  return directory +
         packed(kEnd64, uint64_t{44}, kVersion, kVersion, uint32_t{0}, uint32_t{0}, count, count, size, position_) +
         packed(kEnd64Locator, uint32_t{0}, position_ + size, uint32_t{1}) +
         packed(kEnd, uint16_t{0}, uint16_t{0}, short_count, short_count, static_cast<uint32_t>(size), kIn64Bits,
                uint16_t{0});
}

namespace {

struct Directory {
  uint64_t offset = 0, size = 0, count = 0;
};

/// The end record may be followed by a comment, so it is searched backwards. `tail`: the last bytes of the archive.
std::optional<Directory> find_directory(CheckedReader& file, int64_t offset, uint64_t length, std::string_view tail) {
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; at-- > 0;) {
    if (field_at<uint32_t>(tail, at) != kEnd) continue;
    Directory found{field_at<uint32_t>(tail, at + 16), field_at<uint32_t>(tail, at + 12),
                    field_at<uint16_t>(tail, at + 10)};
    const bool has_locator = at >= kLocatorBytes && field_at<uint32_t>(tail, at - kLocatorBytes) == kEnd64Locator;
    if (!has_locator) return found;
    const auto end64 = field_at<uint64_t>(tail, at - kLocatorBytes + 8);
    if (end64 > length || length - end64 < kEnd64Bytes) throw DamageError("a zip record is outside its archive");
    const std::string record = file.read(offset + static_cast<int64_t>(end64), kEnd64Bytes);
    if (field_at<uint32_t>(record, 0) != kEnd64) throw DamageError("a zip record is not where another one says");
    return Directory{field_at<uint64_t>(record, 48), field_at<uint64_t>(record, 40), field_at<uint64_t>(record, 32)};
  }
  return std::nullopt;
}

/// A size or offset; if its 32 bits are the marker, the next value of the 64-bit extra field.
uint64_t widened(uint32_t value, std::string_view& extra64) {
  if (value != kIn64Bits) return value;
  const auto wide = field_at<uint64_t>(extra64, 0);
  extra64.remove_prefix(sizeof wide);
  return wide;
}

std::string_view extra64_of(std::string_view extra) {
  while (extra.size() >= 4) {
    const size_t size = field_at<uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    if (field_at<uint16_t>(extra, 0) == kExtra64) return extra.substr(4, size);
    extra.remove_prefix(4 + size);
  }
  return {};
}

/// Parses the directory record at the start of `lines` and removes it.
ZipEntry take_line(CheckedReader& file, int64_t offset, uint64_t length, std::string_view& lines) {
  if (field_at<uint32_t>(lines, 0) != kDirectoryLine) throw DamageError("a zip directory is malformed");
  if (field_at<uint16_t>(lines, 10) != 0) throw DamageError("a zip entry is compressed");
  const size_t name = field_at<uint16_t>(lines, 28), extra = field_at<uint16_t>(lines, 30);
  const size_t total = kLineBytes + name + extra + field_at<uint16_t>(lines, 32);
  if (total > lines.size()) throw DamageError("a zip directory ends too early");
  std::string_view wide = extra64_of(lines.substr(kLineBytes + name, extra));
  const uint64_t bytes = widened(field_at<uint32_t>(lines, 24), wide);
  const uint64_t stored = widened(field_at<uint32_t>(lines, 20), wide);
  const uint64_t header = widened(field_at<uint32_t>(lines, 42), wide);
  if (header > length || length - header < kHeaderBytes) throw DamageError("a zip entry is outside its archive");
  const std::string local = file.read(offset + static_cast<int64_t>(header), kHeaderBytes);
  if (field_at<uint32_t>(local, 0) != kLocalHeader) throw DamageError("a zip entry has no header");
  const uint64_t begin = header + kHeaderBytes + field_at<uint16_t>(local, 26) + field_at<uint16_t>(local, 28);
  if (stored != bytes || begin > length || bytes > length - begin) {
    throw DamageError("a zip entry is outside its archive");
  }
  ZipEntry entry{std::string(lines.substr(kLineBytes, name)), offset + static_cast<int64_t>(begin),
                 static_cast<int64_t>(bytes)};
  lines.remove_prefix(total);
  return entry;
}

}  // namespace

std::vector<ZipEntry> read_zip(CheckedReader& file, int64_t offset, int64_t length) {
  const auto size = static_cast<uint64_t>(length);
  std::optional<Directory> directory;
  // Archives rarely have a comment; the second, longer read finds the end record of those.
  for (const size_t look : {kEndBytes + kLocatorBytes, kEndBytes + kLocatorBytes + kLongestComment}) {
    const int64_t tail = std::min(length, static_cast<int64_t>(look));
    directory = find_directory(file, offset, size, file.read(offset + length - tail, tail));
    if (directory) break;
  }
  if (!directory) {
    const FileKind kind = kind_of(file.read(offset, std::min<int64_t>(length, kKindBytes)));
    const bool is_cut_off = kind == FileKind::zip || kind == FileKind::torch_zip || kind == FileKind::other;
    throw DamageError(is_cut_off ? "a zip archive is expected here, but this is not one" : describe_kind(kind));
  }
  if (directory->offset > size || directory->size > size - directory->offset) {
    throw DamageError("a zip directory is outside its archive");
  }
  const std::string bytes =
      file.read(offset + static_cast<int64_t>(directory->offset), static_cast<int64_t>(directory->size));
  std::string_view lines = bytes;
  std::vector<ZipEntry> entries;
  for (uint64_t i = 0; i < directory->count; ++i) entries.push_back(take_line(file, offset, size, lines));
  return entries;
}

}  // namespace titan
