#include "titan/checkpoint/checkpointer.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include "state_snapshot.h"
#include "titan/base/json.h"
#include "titan/distributed/own_device.h"

namespace titan {
namespace {

/// Waits for the work enqueued by this thread: other threads copy the state on other streams.
void wait_for_devices(const CheckpointState& state) {
  std::vector<at::Device> devices;
  for (const StateTensor& tensor : state.tensors) {
    if (!tensor.local.defined() || tensor.local.is_cpu()) continue;
    const at::Device device = tensor.local.device();
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  for (const at::Device device : devices) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace

std::string draw_run_name(RankBarrier& barrier) { return barrier.tell(fmt::format("{:08x}", std::random_device()())); }

Checkpointer::Checkpointer(Storage& storage, RankBarrier& barrier, CheckpointerOptions options)
    : storage_(storage), barrier_(barrier), options_(std::move(options)) {}

Checkpointer::~Checkpointer() {
  join_writer();  // it may start a deletion
  if (deleting_.joinable()) deleting_.join();
}

void Checkpointer::plan_for(const std::vector<StateTensor>& tensors) {
  std::vector<LogicalTensor> wanted;
  for (const StateTensor& tensor : tensors) wanted.push_back(tensor.tensor);
  if (snapshot_ && wanted == planned_) return;
  plan_ = plan_save(tensors, barrier_.size(), options_.most_files, options_.least_file_bytes,
                    writes_needed_by(barrier_.rank()));
  planned_ = std::move(wanted);
  snapshot_ = std::make_unique<StateSnapshot>(options_.mode == SaveMode::asynchronous_pinned);
}

void Checkpointer::save(int64_t step, const CheckpointState& state, bool now) {
  finish();
  start_save(step, state, now);
  // A save at once is the last of its process, so one that failed is tried again: no later save would replace it.
  if (now && failed_) start_save(step, state, now);
}

void Checkpointer::start_save(int64_t step, const CheckpointState& state, bool now) {
  const SavePlace place{options_.root, step, options_.run};
  plan_for(state.tensors);
  if (now || options_.mode == SaveMode::synchronous) {
    wait_for_devices(state);
    return after_save(save_together(storage_, barrier_, place, state, plan_));
  }
  snapshot_->begin(state, plan_[static_cast<size_t>(barrier_.rank())]);
  CheckpointState described = state;
  // The writer reads the snapshot, never the tensors that steps change.
  for (StateTensor& tensor : described.tensors) tensor.local.reset();
  writer_ = std::thread(on_own_device([this, place, described = std::move(described)] { write(place, described); }));
}

void Checkpointer::write(const SavePlace& place, const CheckpointState& state) {
  try {
    const auto written = [this](size_t index) { return snapshot_->read(index); };
    const SaveOutcome outcome = save_together(storage_, barrier_, place, state, plan_, written);
    snapshot_->end();
    after_save(outcome);
  } catch (...) {
    snapshot_->end();
    failure_ = std::current_exception();
  }
}

void Checkpointer::after_save(const SaveOutcome& outcome) {
  failed_ = !outcome.committed;
  options_.saved(outcome);
  if (!outcome.committed || barrier_.rank() != 0 || options_.retention.keep_latest <= 0) return;
  // Deleted on a thread: the other ranks already continue training and would wait for this rank in their next
  // collective.
  Retention retention = options_.retention;
  if (const int64_t trusted = trusted_; trusted >= 0) retention.trusted = trusted;
  deleting_ = std::thread([this, retention, step = outcome.step] {
    for (const std::string& failure : delete_old(storage_, options_.root, retention, step)) {
      options_.warn(failure);
    }
  });
}

void Checkpointer::save_by(const std::function<SaveOutcome()>& save) {
  finish();
  for (int tries = 0; tries < 2; ++tries) {  // twice: no later save of this run mends a failure
    const SaveOutcome outcome = save();
    options_.saved(outcome);
    if (outcome.committed) return;
  }
}

void Checkpointer::detach() {
  if (snapshot_) snapshot_->detach();
}

void Checkpointer::join_writer() {
  if (writer_.joinable()) writer_.join();
}

void Checkpointer::finish() {
  join_writer();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (deleting_.joinable()) deleting_.join();
}

namespace {

/// One rank's result: empty, or why it cannot write, with errno.
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

std::string words_of(const WriteTrial& trial) { return json_text(nlohmann::json{trial.problem, trial.reason}); }

WriteTrial trial_in(const std::string& words, size_t rank) {
  WriteTrial trial;
  read_words(words, rank, [&](const nlohmann::json& said) {
    trial = {said.at(0).get<std::string>(), said.at(1).get<int>()};
  });
  return trial;
}

/// The first problem of any rank, with the rank's number if there are several ranks.
WriteTrial agreed(RankBarrier& barrier, const WriteTrial& mine) {
  const std::string answer = barrier.decide(words_of(mine), [](const std::vector<std::string>& all) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      WriteTrial trial = trial_in(all[rank], rank);
      if (trial.problem.empty()) continue;
      if (all.size() > 1) trial.problem = fmt::format("rank {}: {}", rank, trial.problem);
      return words_of(trial);
    }
    return words_of({});
  });
  return trial_in(answer, 0);
}

bool may_recover(int reason) {
  constexpr std::array kPassing{ENOSPC, EDQUOT, EIO, EAGAIN, EBUSY, EINTR, ETIMEDOUT};
  return std::find(kPassing.begin(), kPassing.end(), reason) != kPassing.end();
}

}  // namespace

std::string Checkpointer::rehearse() {
  const std::filesystem::path folder = options_.root / fmt::format("{}trial-{}", kSavingPrefix, options_.run);
  const bool leads = barrier_.rank() == 0;
  WriteTrial trial;
  if (leads) {
    trial = try_writing([&] {
      storage_.make_folders(options_.root);
      storage_.sync_way_to(options_.root);
      storage_.make_folders(folder);
    });
  }
  trial = agreed(barrier_, trial);
  if (trial.problem.empty()) {
    trial = try_writing([&] { storage_.write_all(folder / data_file(barrier_.rank()), "trial"); });
    trial = agreed(barrier_, trial);
  }
  if (leads) try_writing([&] { storage_.remove_folder(folder); });
  if (trial.problem.empty()) return {};
  if (may_recover(trial.reason)) return trial.problem;
  throw Error(ExitCode::storage, trial.problem +
                                     "; checkpoint.folder (under job.dump_folder) must be a folder that every rank can "
                                     "write to, the same one for all");
}

LoadOutcome Checkpointer::load(std::optional<int64_t> step, const LoadAttempt& attempt,
                               const ExportAttempt& attempt_export, const LoadLimit& limit) {
  std::vector<std::string> warnings;
  const bool cleans = barrier_.rank() == 0 && !options_.only_loads;
  if (cleans) give_back(storage_, options_.root);  // failures are retried below and reported there
  LoadOutcome outcome =
      load_together(storage_, barrier_, options_.root, step, attempt, options_.only_loads, attempt_export, limit);
  if (cleans) warnings = clean_leftovers(storage_, options_.root);  // nothing is removed if the load failed
  if (cleans) {
    const std::vector<std::string> files = files_in_the_way(storage_, options_.root);
    warnings.insert(warnings.end(), files.begin(), files.end());
  }
  outcome.warnings.insert(outcome.warnings.begin(), warnings.begin(), warnings.end());
  return outcome;
}

}  // namespace titan
