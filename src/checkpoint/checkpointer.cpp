#include "titan/checkpoint/checkpointer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <random>
#include <utility>

#include "titan/base/json.h"
#include "titan/checkpoint/tensor_source.h"
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

Saver::Saver(Storage& storage, RankBarrier& barrier, SaverOptions options, std::function<void(const SaveOutcome&)> done)
    : storage_(storage), barrier_(barrier), options_(std::move(options)), done_(std::move(done)) {}

Saver::~Saver() {
  if (writer_.joinable()) writer_.join();
}

std::shared_ptr<const SavePlan> Saver::plan_for(const std::vector<PlacedTensor>& tensors) {
  std::vector<LogicalTensor> wanted;
  for (const PlacedTensor& placed : tensors) wanted.push_back(placed.tensor);
  if (!plan_ || wanted != planned_) {
    plan_ = std::make_shared<const SavePlan>(plan_save(tensors, barrier_.size(), options_.split));
    planned_ = std::move(wanted);
    snapshot_ = std::make_unique<StateSnapshot>(options_.mode == SaveMode::asynchronous_pinned);
  }
  return plan_;
}

void Saver::save(int64_t step, const CheckpointState& state, bool now) {
  finish();
  SaveJob job{{options_.root, step, options_.run}, nullptr, state.placed(), {}, state.facts, {}};
  job.plan = plan_for(job.tensors);
  if (barrier_.rank() == 0) {
    for (const StateValue& value : state.values) job.values.push_back({value.name, value_blob(value.value)});
  }
  const std::vector<PlannedWrite>& writes = job.plan->writes[static_cast<size_t>(barrier_.rank())];
  if (now || options_.mode == SaveMode::synchronous) {
    job.written = [&](size_t i) { return written_part(state.tensors[writes[i].tensor], writes[i]); };
    wait_for_devices(state);
    done_(save_together(storage_, barrier_, job));
    return;
  }
  snapshot_->begin(state, writes);
  job.written = [this](size_t i) { return snapshot_->read(i); };
  writer_ = std::thread(on_own_device([this, job = std::move(job)]() mutable { write(std::move(job)); }));
}

void Saver::write(SaveJob job) {
  try {
    const SaveOutcome outcome = save_together(storage_, barrier_, job);
    snapshot_->end();
    done_(outcome);
  } catch (...) {
    snapshot_->end();
    failure_ = std::current_exception();  // read after the thread has been joined
  }
}

void Saver::detach() {
  if (snapshot_) snapshot_->detach();
}

void Saver::finish() {
  if (writer_.joinable()) writer_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

namespace {

constexpr size_t kPiece = size_t{1} << 18;  // bytes taken from the source at once; they stay in the cache until written

}  // namespace

struct StateSnapshot::Part {
  at::Tensor source;             // of this save
  at::Tensor buffer;             // undefined until it is needed, then kept
  AsyncCopy to_read, to_change;  // the copy from a GPU: before the buffer is read, before the source is changed
  std::mutex mutex;              // guards the fields below, and the source while a piece is taken
  bool in_buffer = false;        // the remaining bytes are in the buffer
  size_t taken = 0;              // bytes from the source

  /// `piece`: buffer for bytes that are not kept.
  std::string_view take(size_t offset, size_t most, std::string& piece) {
    const std::lock_guard lock(mutex);
    const at::Tensor& from = in_buffer ? buffer : source;
    const std::string_view all(static_cast<const char*>(from.const_data_ptr()), from.nbytes());
    if (in_buffer) return all.substr(offset, most);
    const std::string_view wanted = all.substr(offset, std::min(most, kPiece));
    piece = wanted;
    taken = offset + wanted.size();
    return piece;
  }

  /// Bytes not copied yet.
  size_t left() {
    const std::lock_guard lock(mutex);
    return in_buffer ? 0 : source.nbytes() - taken;
  }

  /// Copies what has not been written yet; a new buffer has the full size, so that it can be reused.
  void copy_rest() {
    const bool is_new = !buffer.defined();
    if (is_new) buffer = at::empty_like(source);
    const size_t count = is_new ? source.nbytes() : left();
    const size_t begin = source.nbytes() - count;
    copy_streamed(static_cast<char*>(buffer.mutable_data_ptr()) + begin,
                  static_cast<const char*>(source.const_data_ptr()) + begin, count);
    const std::lock_guard lock(mutex);
    in_buffer = true;
  }
};

StateSnapshot::StateSnapshot(bool beside) : beside_(beside), pinned_(std::make_shared<PinnedMemory>()) {}
StateSnapshot::~StateSnapshot() = default;

void StateSnapshot::begin(const CheckpointState& state, std::span<const PlannedWrite> writes) {
  while (parts_.size() < writes.size()) parts_.push_back(std::make_unique<Part>());
  over_ = false;
  attached_ = true;
  for (size_t i = 0; i < writes.size(); ++i) {
    Part& part = *parts_[i];
    part.source = local_part(state.tensors[writes[i].tensor], writes[i]);
    part.taken = 0;
    part.in_buffer = !part.source.is_cpu() || !part.source.is_contiguous();
    if (part.in_buffer) copy_at_once(part);
  }
}

void StateSnapshot::copy_at_once(Part& part) {
  const bool beside = beside_ && !part.source.is_cpu();
  const at::IntArrayRef sizes = part.source.sizes();
  const at::ScalarType type = part.source.scalar_type();
  if (!part.buffer.defined()) {
    part.buffer =
        beside ? pinned_->allocate(part.source.numel(), type).view(sizes) : at::empty(sizes, at::TensorOptions(type));
  }
  if (!beside) {
    part.buffer.copy_(part.source);
    return;
  }
  part.to_read = part.to_change = copy_async(part.buffer, part.source, copies_);
}

void StateSnapshot::detach() {
  if (!std::exchange(attached_, false)) return;
  bool is_needed = false;
  for (const std::unique_ptr<Part>& part : parts_) {
    part->to_change.block_stream();
    is_needed |= !over_ && part->left() > 0;
  }
  if (!is_needed) return;
  for (const std::unique_ptr<Part>& part : parts_) {
    if (!part->in_buffer) part->copy_rest();
  }
}

TensorBytes StateSnapshot::read(size_t index) {
  Part& part = *parts_[index];
  part.to_read.synchronize();
  const auto piece = std::make_shared<std::string>();
  return {part.source.scalar_type(), part.source.sizes().vec(),
          [&part, piece](size_t offset, size_t most) { return part.take(offset, most, *piece); }};
}

int64_t StateSnapshot::buffer_bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Part>& part : parts_) {
    if (part->buffer.defined()) bytes += static_cast<int64_t>(part->buffer.nbytes());
  }
  return bytes;
}

size_t StateSnapshot::buffers() const {
  size_t count = 0;
  for (const std::unique_ptr<Part>& part : parts_) count += part->buffer.defined() ? 1 : 0;
  return count;
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

/// The first problem of any rank, with the rank's number if there are several ranks.
WriteTrial agreed(RankBarrier& barrier, const WriteTrial& mine) {
  const std::vector<std::string> all = barrier.exchange(json_text(nlohmann::json{mine.problem, mine.reason}));
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

Checkpointer::Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankBarrier> barrier,
                           CheckpointerOptions options, CheckpointEvents events)
    : storage_(std::move(storage)),
      barrier_(std::move(barrier)),
      options_(std::move(options)),
      events_(std::move(events)) {
  options_.saver.run = barrier_->exchange(fmt::format("{:08x}", std::random_device()())).front();
  saver_ = std::make_unique<Saver>(*storage_, *barrier_, options_.saver,
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
  // Deleted on a thread: the other ranks already continue training and would wait for this rank in their next
  // collective.
  deleting_ = std::thread([this, step = outcome.step] {
    for (const std::string& failure : delete_old(*storage_, options_.saver.root, options_.retention, step)) {
      events_.warn(failure);
    }
  });
}

void Checkpointer::wait_for_deletions() {
  if (deleting_.joinable()) deleting_.join();
}

std::vector<int64_t> Checkpointer::put_aside_later(int64_t step) {
  return titan::put_aside_later(*storage_, options_.saver.root, step);
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
  const std::filesystem::path folder =
      options_.saver.root / fmt::format("{}trial-{}", kSavingPrefix, options_.saver.run);
  const bool leads = barrier_->rank() == 0;
  WriteTrial trial;
  if (leads) {
    trial = try_writing([&] {
      storage_->make_folders(options_.saver.root);
      storage_->sync_way_to(options_.saver.root);
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
  if (cleans) give_back(*storage_, options_.saver.root);  // failures are retried below and reported there
  LoadOutcome outcome =
      load_together(*storage_, *barrier_, options_.saver.root, step, attempt, options_.only_loads, attempt_export);
  if (cleans) warnings = clean_leftovers(*storage_, options_.saver.root);  // nothing is removed if the load failed
  if (cleans) {
    const std::vector<std::string> files = files_in_the_way(*storage_, options_.saver.root);
    warnings.insert(warnings.end(), files.begin(), files.end());
  }
  outcome.warnings.insert(outcome.warnings.begin(), warnings.begin(), warnings.end());
  return outcome;
}

}  // namespace titan
