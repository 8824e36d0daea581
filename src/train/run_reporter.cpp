#include "run_reporter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "run_memory.h"
#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/config/dump.h"
#include "titan/config/schema.h"
#include "titan/job/job.h"
#include "titan/job/updates.h"
#include "titan/train/run_folder.h"
#include "titan/train/start_report.h"

namespace titan {
namespace {

/// A number for a message; the sign of a NaN is omitted.
std::string shown(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

bool is_spike(const StepValues& values) {
  return values.spike && std::isfinite(values.loss) && std::isfinite(values.grad_norm);
}

bool is_non_finite(const StepValues& values) { return values.skipped && !is_spike(values); }

/// The TensorBoard folder of all ranks; each rank's files are in a subfolder. Rank 0 chooses it, since the ranks'
/// clocks may differ.
std::filesystem::path tensorboard_folder_of(const Run& run, bool resumes) {
  const JobConfig& config = run.config;
  const std::filesystem::path root = std::filesystem::path(config.job.dump_folder) / config.metrics.save_tb_folder;
  const std::string key = "tensorboard";
  std::filesystem::path folder;
  if (run.world.rank == 0) folder = tensorboard_folder(root, /*goes_on=*/resumes, wall_time());
  if (!config.metrics.save_for_all_ranks || !run.world.store) return folder;
  if (run.world.rank == 0) run.world.store->set(key, folder.filename().string());
  return root / run.world.store->get_to_str(key) / fmt::format("rank_{}", run.world.rank);
}

/// What run.json and the page contain about the run itself.
nlohmann::ordered_json facts_of(const Run& run, const StepBatch* first) {
  const JobConfig& config = run.config;
  const ModelDescription& model = run.model.description;
  std::vector<std::string> layout;
  for (const MeshAxis axis : kMeshAxes) {
    if (run.place.mesh.size(axis) > 1) layout.push_back(fmt::format("{} {}", name(axis), run.place.mesh.size(axis)));
  }
  nlohmann::ordered_json facts{
      {"description", config.job.description},
      {"model", fmt::format("{} {}, {}", model.name, model.flavor, model.summary)},
      {"parameters", with_thousands(model.parameter_count())},
      {"tokens_per_step", with_thousands(run.data.tokens_per_step)},
      {"steps", config.training.steps},
      {"device", run.device.name},
      {"device_memory", human_bytes(static_cast<double>(run.device.memory_bytes))},
      {"ranks", run.world.size},
      {"layout", join(layout, ", ")},
      {"threads", at::get_num_threads()},
      {"host", host_name()},
      {"started", local_time(wall_time())},
      {"data", run.data.description},
      {"folder", std::filesystem::absolute(config.job.dump_folder).lexically_normal().string()}};
  if (first) facts["sample"] = first_text(*first, *run.data.tokenizer);
  facts["config"] = parse_json<nlohmann::ordered_json>(dump_json(Schema(), config));
  return facts;
}

}  // namespace

RunReporter::RunReporter(Run& run) : run_(run), status_(run.log) {}

void RunReporter::begin(const StartingPoint& start, const StepBatch* first) {
  first_step_ = start.position.step + 1;
  is_trained_ = start.is_trained;
  open_record(first);
  if (run_.folder) progress_ = std::make_unique<ProgressFile>(run_.config.job.dump_folder, start.position.step);
  if (first) {
    report_start(run_, *first);
    run_.log.info("Training starts at step {}", first_step_);
  }
  meter_ = std::make_unique<StepMeter>(run_.device, run_.config.training.steps, run_.data.tokens_per_step,
                                       run_.model.plan().flops_per_token, run_.world.size);
  meter_->name_statistics(run_.model.plan());
  meter_->continue_after(start.position.tokens, start.position.counters.skipped_steps);
}

// A dry run simulates a run elsewhere: its numbers are not recorded in the folder.
void RunReporter::open_record(const StepBatch* first) {
  const MetricsSection& wanted = run_.config.metrics;
  const int64_t rank = run_.world.rank;
  if (run_.world.fake || (rank != 0 && !wanted.save_for_all_ranks)) return;
  const std::filesystem::path top = run_.config.job.dump_folder;
  const std::filesystem::path own = rank == 0 ? top : top / fmt::format("rank-{:04}", rank);
  RecordTargets targets{.metrics = own / "metrics.jsonl",
                        .tensorboard = {},
                        .prometheus = {},
                        .run = top.string(),
                        .report = false,
                        .facts = {}};
  if (wanted.enable_tensorboard) {
    targets.tensorboard = tensorboard_folder_of(run_, first_step_ > 1);
    run_.log.info("TensorBoard logging enabled. Logs will be saved at {}", targets.tensorboard.string());
  }
  if (wanted.prometheus_file && rank == 0) targets.prometheus = top / *wanted.prometheus_file;
  if (wanted.report && rank == 0) {
    targets.report = true;
    targets.facts = facts_of(run_, first);
  }
  if (wanted.enable_wandb) {
    run_.log.shared_warning(
        "metrics.enable_wandb: this program does not send metrics to Weights & Biases; a script does, during the "
        "run or after it: python3 scripts/to_wandb.py {} --follow",
        top.string());
  }
  record_ = std::make_unique<RunRecord>(targets, first_step_, run_.log);
}

template <class Report>
void RunReporter::record(const Report& report) {
  if (run_.folder) run_.folder->keep();
  if (record_) record_->add(report);
}

void RunReporter::begin_save(int64_t step) {
  if (progress_) progress_->begin_save(step);
}

void RunReporter::note_save(int64_t step) {
  if (progress_) progress_->add_save(step);
}

void RunReporter::report_restart() {
  const StartTimes& start = run_.start;
  if (!start.follows_failure || !run_.folder) return;
  const std::vector<EndedAttempt> attempts = read_attempts(run_.config.job.dump_folder);
  if (attempts.empty() || !attempts.back().restarts) return;
  RestartReport report{.step = first_step_, .failed = attempts.back()};
  report.restarts = std::count_if(attempts.begin(), attempts.end(), [](const auto& one) { return one.restarts; });
  // The supervisor may run on another host, whose clock differs.
  report.times = {.ending = report.failed.ended - report.failed.failed,
                  .start = std::max(0.0, start.meeting - report.failed.ended),
                  .rendezvous = start.met - start.meeting,
                  .build = start.built - start.met,
                  .load = start.loaded - start.built,
                  .first_step = wall_time() - start.loaded};
  run_.log.info(restart_words(report));
  record(report);
}

void RunReporter::exclude_since(std::chrono::steady_clock::time_point start) {
  const std::lock_guard lock(mutex_);
  meter_->exclude(std::chrono::steady_clock::now() - start);
}

bool RunReporter::is_due(int64_t step) const {
  return step == first_step_ || step == run_.config.training.steps || step % run_.config.metrics.log_freq == 0;
}

Requests RunReporter::add(EnqueuedStep step) {
  {
    const std::lock_guard lock(mutex_);
    enqueued_.push_back(std::move(step));
  }
  Requests requests;
  // On a GPU a step is read when the next one has been enqueued, so that the device is not idle while the host reads.
  const size_t late = run_.device.device.is_cpu() ? 0 : 1;
  while (enqueued_.size() > late) requests |= read_next();
  return requests;
}

Requests RunReporter::catch_up() {
  Requests requests;
  while (!enqueued_.empty()) requests |= read_next();
  flush();
  return requests;
}

void RunReporter::add(const ValidationReport& report) {
  run_.log.painted(console_line(report, run_.log.colour()));
  record(report);
}

void RunReporter::add(const StragglerReport& report) {
  const std::lock_guard lock(mutex_);
  run_.log.shared_warning(sentence(report));
  record(report);
}

void RunReporter::add(const SampleReport& report) {
  run_.log.info("sample after step {}: {}", report.step, printable_lines(report.prompt + report.text));
  record(report);
}

// Waits for the device or for other ranks happen outside the lock: a thread that ends the process because this one
// hangs takes the lock.
Requests RunReporter::read_next() {
  EnqueuedStep& read = enqueued_.front();
  const StepValues values = read.readback.wait();
  flush();  // waits for nothing: the ranks' comparison was enqueued before this step's work, which has ended
  const bool is_first = read.step == first_step_;
  if (is_first) use_training_timeouts(run_);
  std::string cause;
  if (explain_ && is_non_finite(values) && (aborts_run(values) || is_one_too_many()))
    cause = explain_(read.step, values);
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) {  // another thread is ending the process
      enqueued_.pop_front();
      return {};
    }
    meter_->add_step(read.data_wait_seconds, values.skipped);
    judge(read, values, cause);
    if (progress_) progress_->add_step(read.step);
    unreported_.reset();
    if (is_due(read.step)) {
      pending_.push_back(report_of(read, values, meter_->report(read.step, read.learning_rate, values, read.counters)));
      if (is_first) pending_.back().memory = run_.memory->rows(pending_.back().report.memory_bytes);
    } else {
      if (status_.is_due()) status_.show(meter_->measure(read.step, read.learning_rate, values, read.counters));
      unreported_ = std::move(read);
    }
    enqueued_.pop_front();
  }
  if (!pending_.empty()) {
    if (run_.communicators.world) compare_ranks(pending_.back());
    if (is_first) run_.memory->compare_libraries();
    if (!run_.communicators.world || run_.device.device.is_cpu()) flush();
  }
  return values.requests;
}

RunReporter::PendingReport RunReporter::report_of(const EnqueuedStep& read, const StepValues& values,
                                                  StepReport report) const {
  PendingReport made{std::move(report), values, {}, {}, {}};
  made.report.data_queue_ready = read.batches_ready;
  made.report.data_queue_depth = run_.data.stream->depth();
  if (read.own_share > 0) made.own_loss = values.own_loss / read.own_share;
  return made;
}

void RunReporter::compare_ranks(PendingReport& made) {
  RankComparison ranks(made.report, made.own_loss, *run_.communicators.world, run_.device.device);
  const std::lock_guard lock(mutex_);
  made.ranks.emplace(std::move(ranks));
}

void RunReporter::flush() {
  while (!pending_.empty()) {
    PendingReport& made = pending_.front();
    if (made.ranks) made.ranks->wait();
    const std::lock_guard lock(mutex_);
    if (!is_closed_) report(made, made.ranks.has_value());
    pending_.pop_front();
  }
}

void RunReporter::report(PendingReport& made, bool compared) {
  StepReport& report = made.report;
  const Log& log = run_.log;
  if (compared) made.ranks->add_to(report);
  log.painted(run_.world.fake ? dry_run_line(report) : console_line(report, log.colour()));
  if (report.allocation_retries > allocation_retries_) {
    log.warning("{} CUDA memory allocation retries so far: memory is nearly full, and each of them stops the device",
                report.allocation_retries);
    allocation_retries_ = report.allocation_retries;
  }
  for (const MemoryRow& row : made.memory) report.memory_by_purpose.push_back({row.purpose, row.planned, row.actual});
  record(report);
  last_ = report;
  if (status_.is_due()) status_.show(report);
  if (report.step != first_step_) return;
  report_restart();
  if (!run_.world.fake) {
    // No check in a resumed run: its weights may have been trained for only a few steps.
    const bool begins = first_step_ == 1;
    const std::optional<std::string> note = explain_first_loss(made.values.loss, run_.model.description.vocabulary,
                                                               begins && is_trained_, begins && !is_trained_);
    if (note) log.shared_warning(*note);
  }
  if (made.memory.empty()) return;
  log.info("memory by purpose, at the peak of the first step:");
  for (const std::string& line : comparison_table(made.memory)) log.info(line);
}

bool RunReporter::aborts_run(const StepValues& values) const {
  return is_non_finite(values) && run_.config.training.non_finite == "abort";
}

bool RunReporter::is_one_too_many() const {
  const int64_t most = run_.config.training.max_skipped_steps;
  return most > 0 && non_finite_in_a_row_ + 1 >= most;
}

// Ends the run once too many steps in a row are not finite: a loss that is NaN stays NaN, and the steps that remain
// would change nothing.
void RunReporter::count_non_finite(const EnqueuedStep& read, const std::string& what) {
  const bool ends = is_one_too_many();
  ++non_finite_in_a_row_;
  if (!ends) return;
  const int64_t most = run_.config.training.max_skipped_steps;
  throw Error(ExitCode::non_finite,
              fmt::format("{}; so were the {} steps before it, and training.max_skipped_steps = {} ends the run; "
                          "try a lower {} or a longer lr_scheduler.warmup_steps, from a checkpoint of step "
                          "{} or earlier",
                          what, most - 1, most, rates_to_lower(run_.config.optimizer), read.step - most));
}

void RunReporter::judge(const EnqueuedStep& read, const StepValues& values, const std::string& cause) {
  if (!is_non_finite(values)) non_finite_in_a_row_ = 0;
  if (is_non_finite(values)) {
    // With the optimizer in backward, each unit is checked separately: those with finite gradients were updated.
    const std::string_view changed = run_.config.optimizer.early_step_in_backward
                                         ? "the units whose own gradients are not were left unchanged"
                                         : "no weight was changed";
    const std::string what =
        fmt::format("step {}: loss {} and gradient norm {} are not finite; {}{}{}", read.step, shown(values.loss),
                    shown(values.grad_norm), changed, cause.empty() ? "" : "; ", cause);
    if (aborts_run(values)) {
      throw Error(ExitCode::non_finite,
                  fmt::format("{}; if it happens again, try a lower {}, a longer lr_scheduler.warmup_steps, or "
                              "training.non_finite = \"skip\"",
                              what, rates_to_lower(run_.config.optimizer)));
    }
    run_.log.shared_warning("{}; the step is skipped", what);
    count_non_finite(read, what);
  }
  if (!is_spike(values)) return;
  const auto [what, value, deviations] =
      values.spike->norm_deviations > values.spike->loss_deviations
          ? std::tuple("gradient norm", values.grad_norm, values.spike->norm_deviations)
          : std::tuple("loss", values.loss, values.spike->loss_deviations);
  run_.log.shared_warning(
      "step {}: {} {:.4g} is {:.1f} standard deviations above the mean of up to the last {} steps; {}", read.step, what,
      value, deviations, run_.config.training.spike_window,
      values.skipped ? "the step is skipped" : "the step was applied");
  record(SpikeReport{read.step, values.spike->loss_deviations, values.spike->norm_deviations, values.skipped});
}

// If a run is stopped, or its corpus ends, it is not known in advance which step is the last.
Requests RunReporter::end_steps() {
  const Requests requests = catch_up();
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || !unreported_) return requests;
    const EnqueuedStep& read = *unreported_;
    const StepValues values = unreported_->readback.wait();
    pending_.push_back(report_of(read, values, meter_->report(read.step, read.learning_rate, values, read.counters)));
    unreported_.reset();
  }
  if (run_.communicators.world) compare_ranks(pending_.back());
  flush();
  return requests;
}

void RunReporter::report_last_lines(std::chrono::milliseconds patience) {
  const auto limit = std::chrono::steady_clock::now() + patience;
  // Report the failure that ends the run, not its consequences.
  const auto succeeds = [](const auto& work) {
    try {
      return work();
    } catch (const std::exception&) {
      return false;
    }
  };
  const auto completes = [&](const auto& result) {
    return succeeds([&] {
      while (!result.is_done()) {
        if (std::chrono::steady_clock::now() >= limit) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return true;
    });
  };
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  // Keep the interval open: closing it resets the peak-memory counter that the out-of-memory report needs.
  const auto report_step = [&](EnqueuedStep& read) {
    const StepValues values = read.readback.wait();
    PendingReport made = report_of(read, values, meter_->measure(read.step, read.learning_rate, values, read.counters));
    return report(made, /*compared=*/false), true;
  };
  // On a CPU a step is reported before it ends; a step that is not reported was interrupted.
  const bool on_cpu = run_.device.device.is_cpu();
  for (size_t i = 0; i < pending_.size() && !on_cpu; ++i) {
    const bool compared = pending_[i].ranks && completes(*pending_[i].ranks);
    succeeds([&] { return report(pending_[i], compared), true; });
  }
  for (size_t i = 0; i < enqueued_.size() && !on_cpu; ++i) {
    EnqueuedStep& read = enqueued_[i];
    const bool continues = completes(read.readback) && succeeds([&] {
                             const StepValues values = read.readback.wait();
                             if (aborts_run(values)) return false;
                             meter_->add_step(read.data_wait_seconds, values.skipped);
                             judge(read, values);
                             unreported_.reset();
                             if (is_due(read.step)) return report_step(read);
                             unreported_ = std::move(read);
                             return true;
                           });
    if (!continues) break;
  }
  if (unreported_) succeeds([&] { return report_step(*unreported_); });
}

void RunReporter::report_skipped(const DataCounters& counters) {
  const Log& log = run_.log;
  log.status({});
  if (meter_->skipped_steps() > 0) {
    log.shared_warning("{} step{} skipped", meter_->skipped_steps(), meter_->skipped_steps() == 1 ? " was" : "s were");
  }
  if (counters.bad_records > 0) log.warning("{} bad records of the corpus were left out", counters.bad_records);
  if (counters.long_conversations > 0) {
    log.warning("{} conversations did not fit into training.seq_len (data.long_conversations)",
                counters.long_conversations);
  }
  if (counters.invalid_utf8 > 0) log.warning("{} malformed UTF-8 sequences were replaced", counters.invalid_utf8);
}

void RunReporter::end(bool stopped) {
  const Log& log = run_.log;
  if (last_ && !run_.world.fake) log.info("final loss {:.5f} at step {}", last_->loss, last_->step);
  log.info("outputs are in {}", run_.config.job.dump_folder);
  if (!record_) return;
  record_->finish(stopped ? CompletionStatus::stopped : CompletionStatus::finished);
  log.info("  metrics       {}", record_->metrics_path().string());
  if (run_.config.metrics.report && run_.world.rank == 0) {
    log.info("  report        {}", (std::filesystem::path(run_.config.job.dump_folder) / "report.html").string());
  }
}

}  // namespace titan
