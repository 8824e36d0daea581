// A file that is memory-mapped, and whether it is still the file that was mapped.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "mapping_faults.h"

namespace titan {

/// Throws Error(bad_data): `what` is wrong with the file of ids at `path`, and what to do.
[[noreturn]] void fail_ids(const std::filesystem::path& path, const std::string& what, const std::string& remedy);
/// The same for a file that was written to while it was read.
[[noreturn]] void fail_changed(const std::filesystem::path& path, const std::string& what);

/// A whole file, memory-mapped read-only. Reading what is not in the file any more ends the process with a sentence.
class MappedFile {
 public:
  /// Throws Error(bad_data): it cannot be opened or mapped, or is a pipe, a device or a folder.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// nullptr if the file is empty.
  const char* bytes() const { return static_cast<const char*>(data_); }
  size_t size() const { return size_; }
  /// The current size.
  size_t size_now() const { return static_cast<size_t>(facts_now().st_size); }
  /// False if the size or the time of change differs from when the file was mapped.
  bool is_unchanged() const;

 private:
  struct stat facts_now() const;

  timespec changed_ = {};
  int descriptor_ = -1;
  void* data_ = nullptr;
  size_t size_ = 0;
  std::optional<MappingFaults> faults_;
};

/// Refuses a file of ids that was written to since it was mapped.
class ChangeWatch {
 public:
  /// Call before the ids are read. Throws Error(bad_data) if the size or the time of change of the file or its index
  /// (nullptr: none) is another. A check holds for kCheckHolds, because system calls per document would slow down
  /// loading.
  void check(const std::filesystem::path& path, const MappedFile& ids, const MappedFile* index);

 private:
  using Clock = std::chrono::steady_clock;
  // A check for each document slowed loading; docs/dropped.md has the number.
  static constexpr std::chrono::milliseconds kCheckHolds{1};

  Clock::time_point seen_ = {};  // time of the last check
};

}  // namespace titan
