// A file that one process at a time holds, as long as it lives: the system lets go of it however the process ends.
// For folders that two runs must not share. Knows nothing of what is in them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace titan {

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
