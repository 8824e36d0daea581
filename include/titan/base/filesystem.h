// Files that are either there whole or not at all, and reads that say why they failed.
// Errors are titan::Error with the path, the system's reason and ExitCode::storage unless the caller names another.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "titan/base/error.h"

namespace titan {

/// The whole file; throws Error(code) "cannot read PATH: reason".
std::string read_file(const std::filesystem::path& path, ExitCode code = ExitCode::storage);

/// Writes beside `path`, syncs, renames over it and syncs the folder: readers see the old file or the new one. What is
/// there and no regular file (a device, a pipe) is written to as it is. Throws Error(storage) "cannot write PATH:
/// reason".
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// The same without syncing, for what is shown rather than kept (a page, a snapshot): a power cut may lose it. Waits
/// for nobody: a pipe that has no reader, or no room, is an error.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// Makes `path` and its parents; throws Error(storage) with the reason when that fails.
void make_folders(const std::filesystem::path& path);

/// A file that lines are appended to. A failed write (disk full) does not throw: it returns false and keeps the reason.
class AppendFile {
 public:
  explicit AppendFile(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  bool append_line(std::string_view line);
  const std::string& last_error() const { return last_error_; }

 private:
  int descriptor_ = -1;
  std::string last_error_;
};

}  // namespace titan
