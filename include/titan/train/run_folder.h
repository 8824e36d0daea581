// The folder of a run, which no other run may write to at the same time: held from the start on, and looked at again
// wherever something is written there.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"

namespace titan {

class RunFolder {
 public:
  /// Makes the folder and takes its run.lock. `holder`: this process, for others to read. Throws Error(launcher) when
  /// another run holds it, Error(storage) when it cannot be made. A file system without locks is a warning.
  RunFolder(std::filesystem::path folder, std::string holder, const Log& log);

  /// Before something is written there: takes the lock anew, folder included, when it was removed or moved away, with
  /// one warning. Throws Error(storage) when another run has taken the folder's place.
  void keep();

 private:
  std::filesystem::path lock_path() const { return folder_ / "run.lock"; }
  std::unique_ptr<LockFile> take() const;
  /// Unless `holder` is this run.
  void refuse_other(const std::string& holder) const;

  std::filesystem::path folder_;
  std::string holder_;
  const Log& log_;
  std::unique_ptr<LockFile> lock_;
  bool warned_ = false;
};

}  // namespace titan
