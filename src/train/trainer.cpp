// The training loop: next batch, step, report, save, validate, sample, until the last step or a request to stop.
#include <algorithm>
#include <cmath>
#include <utility>

#include "non_finite_search.h"
#include "replay_check.h"
#include "run_checkpoints.h"
#include "run_memory.h"
#include "run_reporter.h"
#include "step_observers.h"
#include "stop_vote.h"
#include "straggler_watch.h"
#include "titan/base/final_message.h"
#include "titan/base/process.h"
#include "titan/base/stop_signals.h"
#include "titan/distributed/own_device.h"
#include "titan/ops/profile_range.h"
#include "titan/train/generate.h"
#include "titan/train/host_wait_check.h"
#include "titan/train/run.h"
#include "titan/train/run_folder.h"
#include "titan/train/state_check.h"
#include "titan/train/validator.h"

namespace titan {
namespace {

/// After a failure, steps whose results arrive within this time are still reported: a device that hangs has none.
constexpr std::chrono::milliseconds kLastLinesLimit{1000};

class Trainer {
 public:
  explicit Trainer(Run& run)
      : run_(run), steps_(run.config.training.steps), search_(run), replays_(run), stragglers_(run) {}

  ExitCode run() {
    if (run_.checkpoints && run_.config.checkpoint.create_seed_checkpoint) {
      run_.checkpoints->save_seed();
      run_.log.info("Created seed checkpoint");
      return ExitCode::success;
    }
    const StartingPoint start = resume(run_);
    run_.start.loaded = wall_time();
    position_ = start.position;
    earlier_counters_ = position_.counters.data;
    next_batch_ = run_.data.stream->next(leaves_first_wait());
    run_.reporter->begin(start, next_batch_ ? &*next_batch_ : nullptr);
    observers_.emplace(run_, position_.step + 1);
    if (run_.state_check) run_.state_check->begin(position_.step);
    replays_.begin(position_.step);
    trust_replays();
    RunReporter& reporter = *run_.reporter;
    reporter.explain_non_finite([this](int64_t step, const StepValues& values) { return explain(step, values); });
    const FinalMessagePart last_lines(run_.world.final_message, on_own_device([&] { reporter.report_last_lines(); }));
    try {
      train();
      requests_ |= reporter.end_steps();
    } catch (...) {
      reporter.report_last_lines(kLastLinesLimit);
      if (out_of_memory_words(std::current_exception())) observers_->out_of_memory(position_.step);
      throw;
    }
    observers_->finish();
    const ExitCode code = finish();
    close_communicators(run_);
    return code;
  }

  /// The current computation, for messages.
  std::string where() const { return run_.memory->position(position_.step); }

 private:
  void train() {
    requests_.stop |= StopVote(run_).now();
    while (position_.step < steps_) {
      // Ranks on GPUs stop after the step in which all have learnt of the signal: to ask before it would make the host
      // wait for the device.
      if (!run_.world.is_distributed()) requests_.stop |= StopSignals::received() != 0;
      if (requests_.stop) return;
      if (!observed_step()) {
        if (!requests_.stop) run_.log.shared_warning("Ran out of data; last step was canceled.");
        return;
      }
      if (run_.checkpoints && !run_.config.checkpoint.load_only) StopSignals::allow_for_saving();
      check_when_due();
      save_when_due();
      validate_when_due();
      sample_when_due();
    }
  }

  void trust_replays() {
    const bool are_made = run_.config.debug.replay_steps > 0;
    if (are_made && run_.checkpoints) run_.checkpoints->trust(replays_.last_agreeing());
  }

  bool observed_step() {
    const int64_t step = position_.step + 1;
    observers_->begin_step(step);
    const bool made = train_step(step);
    observers_->end_step(step, made);
    return made;
  }

  /// True if ranks agree, before they begin a step, on whether one of them has got a signal. On a CPU this takes some
  /// microseconds, and then a rank need not wait for its data while the others are in the step already.
  bool votes_before_steps() const { return run_.world.is_distributed() && run_.device.device.is_cpu(); }

  /// Whether a wait for data ends because of a signal; empty: it does not.
  std::function<bool()> leaves_waits() const {
    if (run_.world.is_distributed() && !votes_before_steps()) return {};
    return [] { return StopSignals::received() != 0; };
  }

  /// The first batch is waited for before train(), which begins with a vote on every device.
  static std::function<bool()> leaves_first_wait() {
    return [] { return StopSignals::received() != 0; };
  }

  /// Whether all ranks stop before they use the batch that they have waited for.
  bool stops_before_batch() {
    if (votes_before_steps()) return requests_.stop |= StopVote(run_).now();
    return requests_.stop |= !run_.world.is_distributed() && StopSignals::received() != 0;
  }

  /// False if the corpus has run out, or a signal came before the step.
  bool train_step(int64_t step) {
    BatchStream& stream = *run_.data.stream;
    if (!next_batch_) {
      const ProfileRange range("wait for data");
      next_batch_ = stream.next(leaves_waits());
    }
    if (stops_before_batch() || !next_batch_) return false;
    StepBatch batch = std::move(*next_batch_);
    next_batch_.reset();
    for (const std::string& notice : batch.notices) run_.log.warning(notice);
    const double wait = stream.last_wait_seconds();

    const std::vector<BatchContext> microbatches =
        to_device(batch, run_.model.description.block_causal, run_.device.device, run_.share);
    const double rate = run_.model.schedule.rate(step);
    if (replays_.is_due(step)) {
      replays_.check(step, microbatches[0]);
      trust_replays();
    }
    DebugDump* dump = observers_->begin_work(step, microbatches);
    HostWaitCheck host_waits(run_.device.device, observers_->watches_host(step));
    const StepOutcome outcome = run_.model.step_runner->run(microbatches, step, rate, own_requests(), dump);
    host_waits.finish();
    observers_->end_work(step);
    stragglers_.after_step(step);

    if (batch.counters.invalid_utf8 > 0 && !said_invalid_utf8_) {
      said_invalid_utf8_ = true;
      run_.log.warning("the corpus holds malformed UTF-8; each such sequence is read as U+FFFD and counted");
    }
    batch.counters += earlier_counters_;
    search_.remember({step, microbatches, position_.data, batch.state});
    position_ = {.step = step,
                 .tokens = position_.tokens + run_.data.tokens_per_step,
                 .data = batch.state,
                 .counters = {position_.counters.skipped_steps, batch.counters}};
    EnqueuedStep enqueued{
        step, rate, StepReadback(outcome), wait, stream.ready_before(), batch.counters, run_.own_share(batch)};
    stream.recycle(std::move(batch));
    requests_ |= run_.reporter->add(std::move(enqueued));
    return true;
  }

  /// Why `step` is not finite, for the message that ends the run.
  std::string explain(int64_t step, const StepValues& values) {
    if (run_.world.fake) return {};
    run_.state_check->explain(step);
    return search_.explain(step, std::isfinite(values.own_loss));
  }

  /// Requests of this rank's signals and clock; they reach all ranks with the step's sums.
  Requests own_requests() const {
    const bool asked = StopSignals::take_save_request();
    if (asked && (!run_.checkpoints || run_.config.checkpoint.load_only)) {
      run_.log.warning(
          "SIGUSR2 asks for a checkpoint, and this run saves none (checkpoint.enable, checkpoint.load_only)");
    }
    return {StopSignals::received() != 0, asked || (run_.checkpoints && run_.checkpoints->clock_asks())};
  }

  /// A state is saved only after it was checked.
  void check_when_due() {
    if (!run_.state_check) return;
    const bool saves =
        run_.checkpoints && run_.checkpoints->is_due(position_.step, position_.step == steps_, requests_.save);
    if (saves) requests_ |= run_.reporter->catch_up();
    run_.state_check->after_step(position_.step, saves);
  }

  void save_when_due() {
    const bool asked = std::exchange(requests_.save, false);
    if (!run_.checkpoints) return;
    const auto start = std::chrono::steady_clock::now();
    const bool is_last = position_.step == steps_;
    if (run_.checkpoints->is_due(position_.step, is_last, asked)) {
      if (run_.folder) run_.folder->keep();
      requests_ |= run_.reporter->catch_up();
      position_.counters.skipped_steps = run_.reporter->skipped_steps();
    }
    run_.checkpoints->after_step(position_, is_last, asked);
    run_.reporter->exclude_since(start);
  }

  void validate_when_due() {
    if (!run_.validator || !run_.validator->due(position_.step)) return;
    requests_ |= run_.reporter->catch_up();
    if (requests_.stop) return;
    const auto start = std::chrono::steady_clock::now();
    run_.memory->begin_validation();
    run_.model.assembly.executor->forget_position();
    const auto loss_of = [this](const BatchContext& batch) { return infer(run_, batch, UnitMode::evaluate); };
    StopVote vote(run_);
    const auto stops = [this, &vote] {
      return requests_.stop |= run_.world.is_distributed() ? vote.soon() : StopSignals::received() != 0;
    };
    const std::optional<ValidationReport> report =
        run_.validator->run(position_.step, loss_of, run_.device, stops, leaves_waits());
    if (report) run_.reporter->add(*report);
    run_.memory->end_validation();
    run_.reporter->exclude_since(start);
  }

  void sample_when_due() {
    const int64_t freq = run_.config.metrics.sample_freq;
    const bool is_due = freq > 0 && (position_.step % freq == 0 || position_.step == steps_);
    if (!is_due || run_.world.fake) return;
    requests_ |= run_.reporter->catch_up();
    if (requests_.stop) return;
    const auto start = std::chrono::steady_clock::now();
    const std::optional<SampleReport> sample = write_sample(run_, position_.step);
    if (sample) run_.reporter->add(*sample);
    requests_.stop |= !sample;
    run_.reporter->exclude_since(start);
  }

  ExitCode finish() {
    run_.reporter->report_skipped(position_.counters.data);
    if (run_.state_check && !run_.state_check->cost().empty()) run_.log.info(run_.state_check->cost());
    position_.counters.skipped_steps = run_.reporter->skipped_steps();
    const bool is_over = position_.step >= steps_;
    const bool stopped = requests_.stop && !is_over;
    if (run_.folder) run_.folder->keep();
    RunCheckpoints* checkpoints = run_.checkpoints.get();
    if (checkpoints && !is_over && !run_.config.checkpoint.load_only && run_.state_check) {
      run_.state_check->after_step(position_.step, /*saves=*/true);
    }
    const bool saved = checkpoints && !is_over && checkpoints->save_before_end(position_);
    if (checkpoints) stopped ? checkpoints->stop() : checkpoints->finish();
    if (stopped) {
      run_.log.shared_warning("stopped by a signal after step {} of {}; {}", position_.step, steps_,
                              saved ? fmt::format("it is saved: {} resumes from here", checkpoints->next_command())
                              : !checkpoints ? "nothing was saved"
                                             : "it is not saved: " + checkpoints->next_start());
    } else {
      run_.log.info("Training completed");
    }
    run_.reporter->end(stopped);
    if (!stopped) return ExitCode::success;
    return saved ? ExitCode::requeue : ExitCode::interrupted;
  }

  Run& run_;
  const int64_t steps_;
  RunPosition position_;           // after the last step
  Requests requests_;              // agreed on by all ranks
  DataCounters earlier_counters_;  // of the run's earlier starts
  bool said_invalid_utf8_ = false;
  std::optional<StepBatch> next_batch_;  // the first of this process; read early for the start report
  std::optional<StepObservers> observers_;
  NonFiniteSearch search_;
  ReplayCheck replays_;
  StragglerWatch stragglers_;
};

}  // namespace

ExitCode train(Run& run) {
  Trainer trainer(run);
  ExitCode code{};
  run.memory->watch([&] { return trainer.where(); }, [&] { code = trainer.run(); });
  return code;
}

}  // namespace titan
