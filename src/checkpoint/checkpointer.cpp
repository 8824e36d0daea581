#include "titan/checkpoint/checkpointer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "titan/base/json.h"
#include "titan/checkpoint/catalogue.h"

namespace titan {
namespace {

/// What one rank found: nothing, or why it cannot write, with the system's error number.
struct WriteTrial {
  std::string problem;
  int reason = 0;
};

WriteTrial try_writing(const std::function<void()>& act) {
  try {
    act();
    return {};
  } catch (const StorageError& error) {
    return {error.what(), error.reason()};
  }
}

/// The first problem of any rank, with the rank's number where there are several.
WriteTrial agreed(RankBarrier& meeting, const WriteTrial& mine) {
  const std::vector<std::string> all = meeting.exchange(json_text(nlohmann::json{mine.problem, mine.reason}));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string problem;
    int reason = 0;
    read_words(all[rank], rank, [&](const nlohmann::json& said) {
      problem = said.at(0).get<std::string>();
      reason = said.at(1).get<int>();
    });
    if (!problem.empty()) return {all.size() == 1 ? problem : fmt::format("rank {}: {}", rank, problem), reason};
  }
  return {};
}

bool may_recover(int reason) {
  constexpr std::array kPassing{ENOSPC, EDQUOT, EIO, EAGAIN, EBUSY, EINTR, ETIMEDOUT};
  return std::find(kPassing.begin(), kPassing.end(), reason) != kPassing.end();
}

}  // namespace

Checkpointer::Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankBarrier> meeting,
                           CheckpointerOptions options, CheckpointEvents events)
    : storage_(std::move(storage)),
      barrier_(std::move(meeting)),
      options_(std::move(options)),
      events_(std::move(events)) {
  run_ = barrier_->exchange(fmt::format("{:08x}", std::random_device()())).front();
  saver_ = std::make_unique<Saver>(*storage_, *barrier_, SaverOptions{options_.root, run_, options_.mode},
                                   [this](const SaveOutcome& outcome) { after_save(outcome); });
}

Checkpointer::~Checkpointer() {
  saver_.reset();  // its thread may start a deletion
  wait_for_deletions();
}

void Checkpointer::after_save(const SaveOutcome& outcome) {
  failed_ = !outcome.committed;
  events_.saved(outcome);
  if (!outcome.committed || barrier_->rank() != 0 || options_.retention.keep_latest <= 0) return;
  // The other ranks already train on, and wait for this one in their next collective: not for a slow file system.
  deleting_ = std::thread([this, step = outcome.step] {
    for (const std::string& failure : delete_old(*storage_, options_.root, options_.retention, step)) {
      events_.warn(failure);
    }
  });
}

void Checkpointer::wait_for_deletions() {
  if (deleting_.joinable()) deleting_.join();
}

std::vector<int64_t> Checkpointer::put_aside_later(int64_t step) {
  return titan::put_aside_later(*storage_, options_.root, step);
}

void Checkpointer::save(int64_t step, const CheckpointState& state, bool now) {
  finish();
  saver_->save(step, state, now);
  if (now && failed_) saver_->save(step, state, now);
}

void Checkpointer::save_by(const std::function<SaveOutcome(Storage&, RankBarrier&)>& save) {
  finish();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const SaveOutcome outcome = save(*storage_, *barrier_);
    events_.saved(outcome);
    if (outcome.committed) return;
  }
}

void Checkpointer::finish() {
  saver_->finish();
  wait_for_deletions();
}

std::string Checkpointer::rehearse() {
  const std::filesystem::path folder = options_.root / fmt::format("{}trial-{}", kSavingPrefix, run_);
  const bool leads = barrier_->rank() == 0;
  WriteTrial trial;
  if (leads) {
    trial = try_writing([&] {
      storage_->make_folders(options_.root);
      storage_->sync_way_to(options_.root);
      storage_->make_folders(folder);
    });
  }
  trial = agreed(*barrier_, trial);
  if (trial.problem.empty()) {
    trial = try_writing([&] { storage_->write_all(folder / data_file(barrier_->rank()), "trial"); });
    trial = agreed(*barrier_, trial);
  }
  if (leads) try_writing([&] { storage_->remove_folder(folder); });
  if (trial.problem.empty()) return {};
  if (may_recover(trial.reason)) return trial.problem;
  throw Error(ExitCode::storage, trial.problem +
                                     "; checkpoint.folder (under job.dump_folder) must be a folder that every rank can "
                                     "write to, the same one for all");
}

LoadOutcome Checkpointer::load(std::optional<int64_t> step, const LoadAttempt& attempt,
                               const ExportAttempt& attempt_export) {
  std::vector<std::string> warnings;
  const bool cleans = barrier_->rank() == 0 && !options_.only_loads;
  if (cleans) give_back(*storage_, options_.root);  // what fails is tried again below, and said there
  LoadOutcome outcome =
      load_together(*storage_, *barrier_, options_.root, step, attempt, options_.only_loads, attempt_export);
  if (cleans) warnings = clean_leftovers(*storage_, options_.root);  // nothing goes where a run was refused
  if (cleans) {
    const std::vector<std::string> files = files_in_the_way(*storage_, options_.root);
    warnings.insert(warnings.end(), files.begin(), files.end());
  }
  outcome.warnings.insert(outcome.warnings.begin(), warnings.begin(), warnings.end());
  return outcome;
}

}  // namespace titan
