// Files that are either there whole or not at all, and reads that say why they failed.
// Errors are titan::Error with the path, the system's reason and ExitCode::storage unless the caller names another.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "titan/base/error.h"

namespace titan {

/// The whole file, device or pipe; throws Error(code) "cannot read PATH: reason", also when it holds more than `most`
/// bytes, of which no more are read.
std::string read_file(const std::filesystem::path& path, ExitCode code = ExitCode::storage,
                      size_t most = std::string::npos);

/// Writes beside `path`, syncs, renames over it and syncs the folder: readers see the old file or the new one. What is
/// there and no regular file (a device, a pipe) is written to as it is. Throws Error(storage) "cannot write PATH:
/// reason".
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// The same without syncing, for what is shown rather than kept (a page, a snapshot): a power cut may lose it. Waits
/// for nobody: a pipe that has no reader, or no room, is an error.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// Makes `path` and its parents; throws Error(storage) with the reason when that fails.
void make_folders(const std::filesystem::path& path);

/// Whether `path` still names the open file: false once it was removed, moved away or replaced. True where the system
/// cannot tell.
bool is_file_at(int descriptor, const std::filesystem::path& path);

/// A file that lines are appended to. A failed write (disk full) does not throw: it returns false and keeps the reason.
/// A file that was removed is made again, with its folders, for the next line.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  bool append_line(std::string_view line);
  const std::string& last_error() const { return last_error_; }

 private:
  int open();

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string last_error_;
};

// A file that one process at a time holds, as long as it lives: the system lets go of it however the process ends.
// For folders that two runs must not share. Knows nothing of what is in them.

class LockFile {
 public:
  enum class State {
    held,       ///< by this object
    taken,      ///< by somebody else: detail() is what that one wrote
    unlockable  ///< nobody can hold it: detail() is the system's reason
  };

  /// Makes the file at `path` when it is not there, and tries to hold it. `holder`, a line that says who has it, is
  /// written into it. The file stays when the lock goes: removing it could take it from a process that waits for it.
  LockFile(const std::filesystem::path& path, std::string_view holder);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  /// Whether the path still names this file. False once it was removed or replaced: another process can then hold a
  /// file of that name.
  bool is_in_place() const;

  State state() const { return state_; }
  const std::string& detail() const { return detail_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  State state_ = State::unlockable;
  std::string detail_;
};

}  // namespace titan
