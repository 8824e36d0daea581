// Atomic file writes, and reads with error messages. Errors are titan::Error with the path, the system's reason and
// ExitCode::storage unless the caller passes another code.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "titan/base/error.h"

namespace titan {

/// A user may name a device, a pipe or a link. Files whose names the program chose in a folder, its own files, are
/// regular files and nothing else: another kind there leads elsewhere, or blocks.

/// Why the program's own file cannot be at `path`: "it is a symbolic link, and …"; empty if a regular file is there or
/// nothing.
std::string own_file_obstacle(const std::filesystem::path& path);

/// Reads a whole file, device or pipe. Throws Error(code) "cannot read PATH: reason", also if it holds more than `most`
/// bytes, where reading stops, or if a pipe is silent for 3 s.
std::string read_file(const std::filesystem::path& path, ExitCode code = ExitCode::storage,
                      size_t most = std::string::npos);

/// Writes a temporary file next to `path`, syncs, renames it and syncs the folder: readers see the old or the new file.
/// An existing path that is not a regular file (a device, a pipe) is written directly if the user named it; a pipe
/// whose reader takes nothing for 3 s is an error. Throws Error(storage) "cannot write PATH: reason".
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Like write_file_atomically without syncing, for files that may be lost in a power cut (a page, a snapshot). Never
/// blocks: a pipe without a reader or without room is an error.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for the program's own files: throws Error(storage) if anything but a regular file is at `path`.
void write_own_file_atomically(const std::filesystem::path& path, std::string_view bytes);
void replace_own_file(const std::filesystem::path& path, std::string_view bytes);

/// Creates `path` and its parents; throws Error(storage) with the reason on failure.
void make_folders(const std::filesystem::path& path);

/// Whether `path` still names the open file: false once it was removed, moved away or replaced. True if unknown.
bool is_file_at(int descriptor, const std::filesystem::path& path);

/// A file opened for appending lines. A failed write (disk full) returns false and sets last_error(). A removed file is
/// created again, with its folders, at the next line. It is one of the program's own files.
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

// An exclusive lock on a file, for folders that two runs must not share. The system releases it when the process ends,
// even after a crash.

class LockFile {
 public:
  enum class State {
    held,       ///< by this object
    taken,      ///< held by another process: detail() is its `holder` line
    unlockable  ///< locking failed: detail() is the system's reason
  };

  /// Creates the file at `path` if missing, tries to lock it and writes `holder`, a line that identifies the owner, to
  /// it. The file is not removed on release: that could break the lock of a process that is waiting for it.
  LockFile(const std::filesystem::path& path, std::string_view holder);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  /// Whether the path still names this file. False once it was removed or replaced: another process can then lock a new
  /// file of that name.
  bool is_in_place() const;

  State state() const { return state_; }
  const std::string& detail() const { return detail_; }

 private:
  std::filesystem::path path_;
  std::string detail_;  // before descriptor_, whose opening may set it
  int descriptor_ = -1;
  State state_ = State::unlockable;
};

}  // namespace titan
