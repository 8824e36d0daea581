#include "titan/train/trainer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/stop_signals.h"
#include "titan/base/text.h"
#include "titan/checkpoint/store_meeting.h"
#include "titan/data/find_position.h"
#include "titan/distributed/own_device.h"
#include "titan/parallel/plan.h"
#include "titan/train/batch.h"
#include "titan/train/host_wait_check.h"
#include "titan/train/job.h"
#include "titan/train/traffic_check.h"

namespace titan {

ExitCode Trainer::run() {
  ExitCode code{};
  with_memory_report([this] { return where(); }, [&] { code = run_job(); });
  return code;
}

ExitCode Trainer::run_job() {
  const int64_t steps = config_.training.steps;
  if (checkpoints_ && config_.checkpoint.create_seed_checkpoint) {
    checkpoints_->save_seed();
    log_.info("Created seed checkpoint");
    return ExitCode::success;
  }
  resume();
  next_batch_ = stream_->next();
  open_record();
  if (next_batch_) show_start(*next_batch_);
  tokens_per_step_ = make_batch_plan(config_, place_).global_batch() * config_.training.seq_len;
  meter_ = std::make_unique<StepMeter>(device_, steps, tokens_per_step_, assembly_.executor->plan().flops_per_token,
                                       world_.size);
  meter_->continue_after(position_.tokens);
  open_profilers();
  const WordsToSay words(world_.last_words, on_own_device([this] { tell_what_has_come(); }));
  try {
    train();
    settle_all();
    report_last_step();
  } catch (...) {
    tell_what_has_come(kLastLinesLimit);
    if (snapshots_ && out_of_memory_words(std::current_exception())) snapshots_->write_at_exit(position_.step);
    throw;
  }
  if (profiler_) profiler_->finish();
  const ExitCode code = finish();
  end_groups();
  return code;
}

// A rank that closed a communicator early would take the last chunks of a collective from those behind it.
void Trainer::end_groups() {
  if (device_.device.is_cpu() || !world_.store) return;
  wait_for_device(device_.device);
  if (world_.is_distributed()) {
    const std::chrono::seconds patience(config_.comm.train_timeout_seconds);
    const MeetingWaits waits{.limit = std::chrono::hours(2), .patience = patience, .waits = world_.waits, .tell = {}};
    make_store_meeting(world_.store->clone(), "end", world_.rank, world_.size, waits)->exchange({});
  }
  groups_.shut_down();
}

void Trainer::train() {
  while (position_.step < config_.training.steps) {
    // Alone, a signal is followed at once; together, after the step in which all ranks have learnt of it.
    if (!world_.is_distributed()) wishes_.stop |= StopSignals::received() != 0;
    if (wishes_.stop) break;
    if (!watched_step()) {
      log_.shared_warning("Ran out of data; last step was canceled.");
      break;
    }
    save_when_due();
    validate_when_due();
  }
}

void Trainer::open_profilers() {
  if (world_.fake) return;
  const ProfilingSection& wanted = config_.profiling;
  const std::filesystem::path top = config_.job.dump_folder;
  if (wanted.enable_profiling) {
    profiler_ = std::make_unique<StepProfiler>(
        ProfileCycle{wanted.profile_freq, wanted.profiler_warmup, wanted.profiler_active},
        top / wanted.save_traces_folder, world_.rank, device_.device.is_cuda(), log_);
  }
  if (wanted.enable_memory_snapshot) {
    snapshots_ =
        std::make_unique<MemorySnapshots>(device_.device, top / wanted.save_memory_snapshot_folder, world_.rank, log_);
  }
}

bool Trainer::watched_step() {
  const int64_t step = position_.step + 1;
  if (profiler_) profiler_->begin_step(step);
  const bool made = train_step();
  const auto start = std::chrono::steady_clock::now();
  if (profiler_) profiler_->end_step(step);
  if (snapshots_ && made && step % config_.profiling.profile_freq == 0) snapshots_->write(step);
  exclude_since(start);
  return made;
}

void Trainer::resume() {
  if (!checkpoints_) return;
  RunCheckpoints::Start start = checkpoints_->load();
  position_ = std::move(start.position);
  is_trained_ = start.is_trained;
  if (position_.samples) find_data_position(*position_.samples);
  if (position_.data) stream_->restore(*position_.data);
  if (guard_ && position_.guard && !guard_->restore(*position_.guard)) {
    log_.shared_warning("training.spike_window is not that of the checkpoint: the spike guard begins anew");
  }
  first_step_ = position_.step + 1;
}

void Trainer::find_data_position(const SamplePosition& samples) {
  std::string problem = foreign_position_obstacle(config_, place_, samples.ranks);
  if (problem.empty()) {
    log_.info("Looking for the data position in the corpus: after {} documents", samples.samples);
    FoundPosition found =
        find_position(*open_training_documents(config_, place_), *tokenizer_, samples.samples, samples.left_tokens);
    problem = std::move(found.problem);
    position_.data = found.state;
  }
  if (!problem.empty()) {
    log_.warning("the data position could not be restored ({}): the data begin anew", problem);
    return;
  }
  log_.info("the data position was restored: {} documents had been read, {} tokens of them are still to be used",
            samples.samples, samples.left_tokens.size());
}

Wishes Trainer::own_wishes() const {
  const bool asked = StopSignals::take_save_request();
  if (asked && (!checkpoints_ || config_.checkpoint.load_only)) {
    log_.warning("SIGUSR2 asks for a checkpoint, and this run saves none (checkpoint.enable, checkpoint.load_only)");
  }
  return {StopSignals::received() != 0, asked || (checkpoints_ && checkpoints_->clock_asks())};
}

void Trainer::save_when_due() {
  const bool asked = std::exchange(wishes_.save, false);
  if (!checkpoints_) return;
  const auto start = std::chrono::steady_clock::now();
  const bool is_last = position_.step == config_.training.steps;
  if (folder_ && checkpoints_->is_due(position_.step, is_last, asked)) folder_->keep();
  checkpoints_->after_step(position_, is_last, asked);
  exclude_since(start);
}

void Trainer::validate_when_due() {
  if (!validator_ || !validator_->due(position_.step)) return;
  settle_all();
  const auto start = std::chrono::steady_clock::now();
  auto loss_of = [this](const BatchContext& batch) { return infer(batch, UnitMode::evaluate); };
  phase_ = RunPhase::validation;
  if (!device_.device.is_cpu()) held_ = peak_memory_bytes(device_.device);
  assembly_.executor->forget_position();
  if (const std::optional<ValidationReport> report = validator_->run(position_.step, loss_of, device_)) {
    log_.painted(console_line(*report, colour_));
    record(*report);
  }
  phase_ = RunPhase::training;
  exclude_since(start);
}

bool Trainer::train_step() {
  const int64_t step = position_.step + 1;
  if (!next_batch_) {
    const ProfileRange range("wait for data");
    next_batch_ = stream_->next();
    if (!next_batch_) return false;
  }
  StepBatch batch = std::move(*next_batch_);
  next_batch_.reset();
  for (const std::string& notice : batch.notices) log_.warning(notice);
  const double wait = stream_->last_wait_seconds();
  const std::vector<BatchContext> microbatches = to_device(batch, description_.block_causal, device_.device, share_);
  const std::unique_ptr<DebugDump> dump = begin_dump(step, microbatches);
  const double rate = schedule_.rate(step);
  const bool checked = !traffic_shown_ && !dump && world_.is_distributed() && begins_fresh(step);
  if (checked) groups_.reset_traffic();
  const StepOutcome outcome = run_step(microbatches, rate, dump.get());
  if (checked) show_traffic(step);
  position_ = {step, position_.tokens + tokens_per_step_, position_.optimizer_steps + 1, batch.state};
  if (dump) log_.info("step {} was dumped to {}", step, dump->write(config_.job.dump_folder, step).string());

  if (batch.counters.invalid_utf8 > 0 && read_.invalid_utf8 == 0) {
    log_.warning("the corpus holds malformed UTF-8; each such sequence is read as U+FFFD and counted");
  }
  read_ = batch.counters;
  {
    PendingStep made{
        step, rate, StepReadback(outcome), wait, stream_->ready_before(), batch.counters, own_share(batch)};
    const std::lock_guard lock(telling_);
    pending_.push_back(std::move(made));
  }
  stream_->recycle(std::move(batch));
  // On a GPU the results are looked at one step later, when they have long arrived; on a CPU they are there now.
  const size_t allowed = device_.device.is_cpu() ? 0 : 1;
  while (pending_.size() > allowed) settle_next();
  return true;
}

StepOutcome Trainer::run_step(const std::vector<BatchContext>& microbatches, double rate, DebugDump* dump) {
  // The first step meets libraries that set themselves up, and a dump copies to the host.
  HostWaitCheck check(device_.device, config_.debug.sync_check && position_.step >= first_step_ && !dump);
  StepOutcome outcome = step_runner_->run(microbatches, position_.optimizer_steps + 1, rate, own_wishes(), dump);
  check.finish();
  return outcome;
}

double Trainer::own_share(const StepBatch& batch) const {
  const Plan& plan = assembly_.executor->plan();
  if (plan.units.empty() || plan.units.back().role != UnitRole::head || batch.valid_tokens == 0) return 0;
  return static_cast<double>(valid_tokens_of(batch, share_)) / static_cast<double>(batch.valid_tokens);
}

// The start and a validation leave gathered weights behind, which the next step need not gather.
bool Trainer::begins_fresh(int64_t step) const {
  return step > first_step_ && !(validator_ && validator_->due(step - 1));
}

void Trainer::show_traffic(int64_t step) {
  traffic_shown_ = true;
  const TrafficCheck check = check_traffic(assembly_.executor->plan(), groups_);
  log_.info("This rank sent {} in {} collectives in step {}, {}", human_bytes(check.sent_bytes), check.calls, step,
            check.differences.empty() ? "as planned" : "which is not what was planned:");
  if (!check.differences.empty()) tell_differences(check);
  if (!plan_request_.pipeline) return;
  const int64_t planned = planned_live(*plan_request_.pipeline), live = assembly_.executor->most_live();
  log_.info("This rank kept the activations of at most {} microbatches and stages at once, {}", live,
            live == planned ? "as planned" : fmt::format("planned {}", planned));
}

void Trainer::tell_differences(const TrafficCheck& check) const {
  // The ranks need not differ alike, and mostly do: the first to find it says it.
  const bool tells = !world_.store || world_.store->add("traffic/differences", 1) == 1;
  for (const std::string& difference : check.differences) {
    const std::string line = fmt::format("  rank {}: {}", world_.rank, difference);
    tells ? log_.warning(line) : log_.info(line);
  }
}

at::Tensor Trainer::infer(const BatchContext& batch, UnitMode mode) {
  at::Tensor result = assembly_.executor->infer(batch, mode);
  if (!plan_request_.pipeline || mode != UnitMode::logits) return result;
  // Whoever writes a dump may run another stage.
  std::vector<int64_t> shape = batch.tokens.sizes().vec();
  shape.push_back(description_.vocabulary);
  result = result.defined() ? result.to(at::kFloat) : at::zeros(shape, batch.tokens.options().dtype(at::kFloat));
  groups_.pipeline->all_reduce({result})->wait();
  return result;
}

std::unique_ptr<DebugDump> Trainer::begin_dump(int64_t step, const std::vector<BatchContext>& microbatches) {
  const std::vector<int64_t>& wanted = config_.debug.dump_steps;
  if (world_.fake || std::find(wanted.begin(), wanted.end(), step) == wanted.end()) return nullptr;
  DumpRanks ranks{groups_.world, groups_.data, share_.split, world_.rank == 0, plan_request_.pipeline.has_value()};
  auto dump = std::make_unique<DebugDump>(all_parameters_, microbatches, std::move(ranks));
  if (config_.debug.dump_logits) {
    std::vector<at::Tensor> logits;
    for (const BatchContext& batch : microbatches) logits.push_back(infer(batch, UnitMode::logits));
    dump->add_logits(logits);
  }
  return dump;
}

ExitCode Trainer::finish() {
  log_.status({});
  if (meter_->skipped_steps() > 0) log_.shared_warning("{} steps were skipped", meter_->skipped_steps());
  if (read_.bad_records > 0) log_.warning("{} bad records of the corpus were left out", read_.bad_records);
  if (read_.invalid_utf8 > 0) log_.warning("{} malformed UTF-8 sequences were replaced", read_.invalid_utf8);
  const bool is_over = position_.step >= config_.training.steps;
  if (folder_) folder_->keep();
  const bool saved = checkpoints_ && !is_over && checkpoints_->save_before_end(position_);
  const bool stopped = wishes_.stop && !is_over;
  if (checkpoints_) stopped ? checkpoints_->stop() : checkpoints_->finish();
  if (stopped) {
    log_.shared_warning("stopped by a signal after step {} of {}; {}", position_.step, config_.training.steps,
                        saved           ? fmt::format("it is saved: {} goes on from here", checkpoints_->next_command())
                        : !checkpoints_ ? "nothing was saved"
                                        : "it is not saved: " + checkpoints_->next_start());
  } else {
    log_.info("Training completed");
  }
  if (last_told_ && !world_.fake) log_.info("final loss {:.5f} at step {}", last_told_->loss, last_told_->step);
  log_.info("outputs are in {}", config_.job.dump_folder);
  if (record_) close_record(stopped);
  if (!stopped) return ExitCode::success;
  return saved ? ExitCode::requeue : ExitCode::interrupted;
}

}  // namespace titan
