#include "titan/report/tensorboard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "titan/base/filesystem.h"
#include "titan/base/process.h"

namespace titan {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

/// Encodes the fields of one Protocol Buffers message.
class WireMessage {
 public:
  void add_double(int field, double value) {
    key(field, 1);
    raw(&value, sizeof value);
  }
  void add_float(int field, float value) {
    key(field, 5);
    raw(&value, sizeof value);
  }
  void add_integer(int field, int64_t value) {
    key(field, 0);
    variable(static_cast<uint64_t>(value));
  }
  void add_bytes(int field, std::string_view value) {
    key(field, 2);
    variable(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire) { variable(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire)); }
  void variable(uint64_t value) {
    for (; value > 127; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void raw(const void* value, size_t size) { bytes_.append(static_cast<const char*>(value), size); }

  std::string bytes_;
};

// Field numbers of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto: written by hand, since
// these few messages are not worth a protocol-buffer compiler in the build.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kSummaryValue = 1, kTag = 1, kSimpleValue = 2;
constexpr int kStatus = 1, kStatusStart = 1;

/// TFRecord rotates and offsets checksums, because the CRC of data that contain CRCs is weak.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

std::string framed(const std::string& record) {
  auto number = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const std::string length = number(static_cast<uint64_t>(record.size()));
  return length + number(masked(crc32c(length))) + record + number(masked(crc32c(record)));
}

/// The time in an event file's name, or nothing.
std::optional<int64_t> time_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t time = 0;
  const char* const begin = name.data() + kPrefix.size();
  const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), time);
  return problem == std::errc() && end != begin ? std::optional(time) : std::nullopt;
}

int64_t newest_time(const std::filesystem::path& folder) {
  int64_t newest = 0;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    newest = std::max(newest, time_in(entry.path().filename().string()).value_or(0));
  }
  return newest;
}

/// "20261122-0930".
bool is_run_folder(const std::string& name) {
  auto digits = [&](size_t from, size_t count) {
    return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(from),
                       name.begin() + static_cast<std::ptrdiff_t>(from + count),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  return name.size() == 13 && name[8] == '-' && digits(0, 8) && digits(9, 4);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < entries.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? (value >> 1) ^ 0x82F63B78u : value >> 1;
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 255] ^ (crc >> 8);
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, double now, const Log& log) : folder_(folder), log_(log) {
  open(now);
}

void EventFile::open(double now) {
  if (descriptor_ >= 0) ::close(descriptor_);
  std::error_code ignored;  // if it fails, so does opening the file, which says why
  std::filesystem::create_directories(folder_, ignored);
  const int64_t time = std::max(static_cast<int64_t>(now), newest_time(folder_) + 1);
  path_ = folder_ / fmt::format("{}{:010}.{}.{}.0", kPrefix, time, host_name(), ::getpid());
  obstacle_ = own_file_obstacle(path_);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  descriptor_ = obstacle_.empty() ? ::open(path_.c_str(), flags, 0644) : -1;
  struct stat facts {};
  if (descriptor_ >= 0 && (::fstat(descriptor_, &facts) != 0 || !S_ISREG(facts.st_mode))) {
    ::close(std::exchange(descriptor_, -1));
    obstacle_ = "it is not a regular file";
  }
  WireMessage event;
  event.add_double(kWallTime, now);
  event.add_bytes(kFileVersion, "brain.Event:2");
  append_event(event.bytes());
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void EventFile::begin_at(int64_t step, double now) {
  WireMessage log, event;
  log.add_integer(kStatus, kStatusStart);
  event.add_double(kWallTime, now);
  event.add_integer(kStep, step);
  event.add_bytes(kSessionLog, log.bytes());
  append_event(event.bytes());
}

void EventFile::add(int64_t step, double now, std::span<const TaggedValue> values) {
  if (descriptor_ >= 0 && !is_file_at(descriptor_, path_)) open(now);
  WireMessage summary, event;
  for (const TaggedValue& one : values) {
    WireMessage value;
    value.add_bytes(kTag, one.tag);
    value.add_float(kSimpleValue, static_cast<float>(one.value));
    summary.add_bytes(kSummaryValue, value.bytes());
  }
  event.add_double(kWallTime, now);
  event.add_integer(kStep, step);
  event.add_bytes(kSummary, summary.bytes());
  append_event(event.bytes());
}

void EventFile::append_event(const std::string& event) {
  const std::string record = framed(event);
  ssize_t written = -1;
  if (descriptor_ >= 0) {
    const off_t end = ::lseek(descriptor_, 0, SEEK_END);
    do {
      written = ::write(descriptor_, record.data(), record.size());
    } while (written < 0 && errno == EINTR);
    if (written == static_cast<ssize_t>(record.size())) return;
    if (written >= 0) errno = ENOSPC;
    // Remove a partial record, because readers would stop there.
    if (const int reason = errno; end >= 0 && ::ftruncate(descriptor_, end) == 0) errno = reason;
  }
  if (std::exchange(warned_, true)) return;
  log_.warning("TensorBoard's events are not being written to {}: {}; training continues without them", path_.string(),
               obstacle_.empty() ? std::strerror(errno) : obstacle_);
}

std::filesystem::path tensorboard_folder(const std::filesystem::path& root, bool goes_on, double now) {
  std::string newest;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(root, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (is_run_folder(name)) newest = std::max(newest, name);
  }
  if (goes_on && !newest.empty()) return root / newest;
  return root / local_time(now, "%Y%m%d-%H%M");
}

}  // namespace titan
