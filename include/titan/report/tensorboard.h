// A value with its name in TensorBoard and similar programs.
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

// TensorBoard event files: Protocol Buffers Event messages in TFRecord framing (length, crc32c, bytes, crc32c). Encoded
// without a library, because only four small messages are needed. Owned by RunRecord. Knows tags and numbers, not their
// meaning.

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of RFC 3720: "123456789" → 0xE3069283.
uint32_t crc32c(std::string_view bytes);

/// One event file, created by the constructor and again if it was removed. Values are stored as float32, like
/// TensorBoard's scalars. On a full disk, events are lost with one warning and the run continues. A record is written
/// completely or not at all, so that readers can continue after a gap.
class EventFile {
 public:
  /// Writes in `folder`, which is created if missing. The file's name sorts after those of existing event files even if
  /// the clock was set back, because TensorBoard reads files in the order of their names. `now`: seconds since 1970.
  EventFile(const std::filesystem::path& folder, double now, const Log& log);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// The run resumes at `step`: marks values of this and later steps in earlier files of the folder as void.
  void begin_at(int64_t step, double now);
  void add(int64_t step, double now, std::span<const TaggedValue> values);

 private:
  /// Creates the file with its initial event.
  void open(double now);
  void append_event(const std::string& event);

  std::filesystem::path folder_, path_;
  const Log& log_;
  int descriptor_ = -1;
  std::string obstacle_;  // why the file cannot be written, if it is no error of the system
  bool warned_ = false;
};

/// The folder of a run's event files. Named by the local time `now` in minutes (20261122-0930), like torchtitan's; a
/// run that `goes_on` uses the newest such folder of `root`, so that its curve continues. A new run within the same
/// minute shares the folder; begin_at() then voids the previous curve.
std::filesystem::path tensorboard_folder(const std::filesystem::path& root, bool goes_on, double now);

}  // namespace titan
