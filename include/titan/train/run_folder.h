// The folder of a run, which no other run may write to at the same time: locked from the start, and checked again
// before each write.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"
#include "titan/report/attempt_record.h"

namespace titan {

class RunFolder {
 public:
  /// Creates the folder and locks its run.lock. `holder`: names this process to others. Throws Error(launcher) if
  /// another run holds the lock, Error(storage) if it cannot be created. On a file system without locks it only warns.
  RunFolder(std::filesystem::path folder, std::string holder, const Log& log);

  /// Call it before a write. If the lock was removed or moved away, recreates it and the folder, with one warning.
  /// Throws Error(storage) if another run uses the folder now.
  void keep();

 private:
  std::filesystem::path lock_path() const { return folder_ / kRunLock; }
  std::unique_ptr<LockFile> take() const;
  /// Throws unless `holder` is this run.
  void refuse_other(const std::string& holder) const;

  std::filesystem::path folder_;
  std::string holder_;
  const Log& log_;
  std::unique_ptr<LockFile> lock_;
  bool warned_ = false;
};

}  // namespace titan
