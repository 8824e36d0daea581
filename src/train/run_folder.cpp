#include "titan/train/run_folder.h"

#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {

RunFolder::RunFolder(std::filesystem::path folder, std::string holder, const Log& log)
    : folder_(std::move(folder)), holder_(std::move(holder)), log_(log) {
  for (const char* name : {kRunLock, "metrics.jsonl", "run.json", "report.html"}) {
    const std::string obstacle = own_file_obstacle(folder_ / name);
    if (obstacle.empty()) continue;
    throw Error(ExitCode::storage,
                fmt::format("{}: {}, or name another folder in job.dump_folder", (folder_ / name).string(), obstacle));
  }
  lock_ = take();
  if (lock_->state() == LockFile::State::taken) {
    throw Error(ExitCode::launcher,
                fmt::format("another run writes to {}: {}; end that one, or name another folder in job.dump_folder",
                            folder_.string(), lock_->detail()));
  }
  if (lock_->state() == LockFile::State::unlockable) {
    log_.warning("{} cannot be locked ({}); make sure that no other run writes to it", folder_.string(),
                 lock_->detail());
  }
}

std::unique_ptr<LockFile> RunFolder::take() const { return std::make_unique<LockFile>(lock_path(), holder_); }

void RunFolder::refuse_other(const std::string& holder) const {
  if (holder == holder_) return;
  throw Error(ExitCode::storage, fmt::format("{} was removed during the run, and another run has taken its place: {}; "
                                             "start this one again with another job.dump_folder",
                                             folder_.string(), holder));
}

void RunFolder::keep() {
  if (lock_->state() != LockFile::State::held || lock_->is_in_place()) return;
  std::error_code ignored;  // creating the lock reports the error
  if (std::filesystem::exists(lock_path(), ignored)) refuse_other(trim(read_file(lock_path())));
  const bool gone = std::filesystem::create_directories(folder_, ignored);
  std::unique_ptr<LockFile> anew = take();
  // On a file system with unstable inode numbers, the lock found may be this run's own.
  if (anew->state() == LockFile::State::taken) return refuse_other(anew->detail());
  const bool held = anew->state() == LockFile::State::held;
  if (!std::exchange(warned_, true)) {
    log_.warning("{} was removed or moved away during the run; {}", (gone ? folder_ : lock_path()).string(),
                 !held  ? fmt::format("it cannot be created again: {}", anew->detail())
                 : gone ? "it was created again, without the files it had"
                        : "it was created again; other files of the folder may be missing");
  }
  if (held) lock_ = std::move(anew);
}

}  // namespace titan
