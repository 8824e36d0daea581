// A number under the name that plotting programs show it by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "titan/base/log.h"

namespace titan {

struct TaggedValue {
  std::string tag;
  double value = 0;
};

// TensorBoard event files: records of TFRecord's framing (length, crc32c, bytes, crc32c) around Event messages of
// Protocol Buffers, written by hand since only four small messages are needed. Owned by RunRecord. Knows
// tags and numbers, not their meaning.

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of RFC 3720: "123456789" → 0xE3069283.
uint32_t crc32c(std::string_view bytes);

/// One event file, made when this is, and another one when that was removed. Values are stored as float32, which is
/// what TensorBoard's scalars are. A full disk loses events and causes one warning; the run continues. A record is in
/// the file completely or not at all, so that readers continue after the gap.
class EventFile {
 public:
  /// In `folder`, which is created if missing. The file's name sorts after those of existing event files, whatever the
  /// clock says: TensorBoard reads a folder's files in the order of their names. `now`: seconds since 1970.
  EventFile(const std::filesystem::path& folder, double now, const Log& log);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// The run continues at `step`: values of this step and later ones in earlier files of the folder are void.
  void begin_at(int64_t step, double now);
  void add(int64_t step, double now, std::span<const TaggedValue> values);

 private:
  /// Makes the file, with the event that begins every one.
  void open(double now);
  void append_event(const std::string& event);

  std::filesystem::path folder_, path_;
  const Log& log_;
  int descriptor_ = -1;
  bool warned_ = false;
};

/// Where a run's event files go: a folder named after the local time `now` in minutes (20261122-0930), as torchtitan
/// names it; or, for a run that `goes_on`, the newest such folder of `root`, so that it stays one curve. A run that
/// begins anew within the same minute shares the folder; its file's begin_at() voids the curve of the one before.
std::filesystem::path tensorboard_folder(const std::filesystem::path& root, bool goes_on, double now);

}  // namespace titan
