// A file that is written from front to back and can be gone on with. Private to data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace titan {

class OutputFile {
 public:
  /// Opens or makes `path` and cuts it to its first `keep` bytes. Throws Error(storage) with the system's reason, as
  /// all of these do.
  OutputFile(const std::filesystem::path& path, int64_t keep);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size);
  /// Returns once everything written is on the disk.
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Renames, and syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace titan
