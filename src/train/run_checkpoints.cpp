#include "run_checkpoints.h"
#include "run_reporter.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/stop_signals.h"
#include "titan/base/text.h"
#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/job/job.h"
#include "titan/report/attempt_record.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/hugging_face.h"
#include "titan/train/run.h"
#include "titan/train/state_dict.h"

namespace titan {
namespace {

/// For a rank that is alive and writes much; the watcher reports one that hangs long before.
constexpr std::chrono::hours kBarrierTimeout{2};

/// The end of a run waits for a command as long as it takes, and says so at this interval. After a signal it waits only
/// this long, since launchers kill a process that does not end soon.
constexpr std::chrono::seconds kCommandNotice{10}, kCommandTimeAtStop{10};

SaveMode mode_of(const std::string& word) {
  if (word == "async") return SaveMode::asynchronous;
  return word == "async_with_pinned_mem" ? SaveMode::asynchronous_pinned : SaveMode::synchronous;
}

/// `name`: distinguishes the barrier from that of the saving thread.
std::unique_ptr<RankBarrier> barrier_of(const Run& run, const std::string& name) {
  const World& world = run.world;
  if (!world.is_distributed()) return make_lone_barrier();
  return make_store_barrier(world.store->clone(), name, world.rank, world.size,
                            {.timeout = kBarrierTimeout,
                             .response_timeout = std::chrono::seconds(run.config.comm.train_timeout_seconds),
                             .waits = world.waits,
                             .report = [&run](const std::string& line) { run.log.info(line); }});
}

}  // namespace

RunCheckpoints::RunCheckpoints(const Run& run)
    : run_(run),
      config_(run.config),
      log_(run.log),
      model_(make_model_request(run.config, run.model.description.vocabulary)),
      state_(run),
      root_(std::filesystem::path(run.config.job.dump_folder) / run.config.checkpoint.folder),
      commands_([this](const std::string& command, int code) {
        if (code != 0) log_.warning("checkpoint.on_commit ended with exit code {}: {}", code, command);
      }),
      storage_(make_posix_storage()) {
  if (splits_by_rank(config_, run.place)) data_barrier_ = barrier_of(run, "data-positions");
  const CheckpointSection& options = config_.checkpoint;
  // Report it now, not after the last step.
  if (options.last_save_in_hf && !options.load_only) adapter_of(model_).hugging_face(model_);
  barrier_ = barrier_of(run, "checkpoints");
  CheckpointerOptions how;
  how.root = root_;
  how.run = draw_run_name(*barrier_);
  how.mode = mode_of(options.async_mode);
  how.retention = {options.keep_latest_k, options.keep_every};
  how.only_loads = options.load_only;
  how.saved = [this](const SaveOutcome& outcome) { report(outcome); };
  how.warn = [this](const std::string& warning) { log_.warning(warning); };
  checkpointer_ = std::make_unique<Checkpointer>(*storage_, *barrier_, std::move(how));
}

StartingPoint RunCheckpoints::load() {
  StartingPoint start = load_run(run_, state_, *checkpointer_);
  begun_at_ = saved_step_ = start.position.step;
  has_checkpoint_ = start.has_checkpoint;
  if (config_.checkpoint.load_only) return start;
  if (start.last_agreeing) {  // now, not before the first save: ranks may disagree again before that
    went_back_to_ = start.last_agreeing;
    leave_later_steps();
  }
  if (has_checkpoint_ && start.went_back) went_back_to_ = saved_step_;
  if (const std::string problem = checkpointer_->rehearse(); !problem.empty() && run_.place.rank == 0) {
    log_.warning("checkpoints cannot be written now: {}; training starts anyway", problem);
  }
  return start;
}

RunPosition RunCheckpoints::with_all_positions(RunPosition now) {
  if (!data_barrier_) return now;
  now.rank_data.resize(static_cast<size_t>(run_.place.mesh.data_parallel_degree()));
  const nlohmann::json mine{{"rank", run_.place.mesh.data_parallel_rank(run_.place.rank)},
                            {"state", to_json(now.data.value_or(StreamState()))}};
  // Only rank 0 writes values of the state dict; the others need its names.
  const std::vector<std::string> all = data_barrier_->gather(json_text(mine));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    read_words(all[rank], rank, [&](const nlohmann::json& said) {
      now.rank_data.at(said.at("rank").get<size_t>()) = stream_state_from_json(said.at("state"));
    });
  }
  return now;
}

void RunCheckpoints::save_seed() {
  begin_ending();
  if (config_.checkpoint.initial_load_path || config_.checkpoint.initial_load_in_hf) {
    log_.warning("checkpoint.{} has no effect: a seed checkpoint holds initial weights",
                 config_.checkpoint.initial_load_path ? "initial_load_path" : "initial_load_in_hf");
  }
  checkpointer_->save(0, state_.whole({}), /*now=*/true);
  finish();
  const std::vector<FoundCheckpoint> found = find_checkpoints(*storage_, root_);
  if (found.empty() || found.front().step == 0) return;
  log_.warning("{} also holds step {}: runs there start from it, not from the seed", root_.string(),
               found.front().step);
}

bool RunCheckpoints::clock_asks() const {
  const int64_t seconds = config_.checkpoint.interval_seconds;
  return seconds > 0 && std::chrono::steady_clock::now() - last_save_ >= std::chrono::seconds(seconds);
}

bool RunCheckpoints::is_due(int64_t step, bool is_last, bool asked) const {
  const CheckpointSection& options = config_.checkpoint;
  if (options.load_only) return false;
  if (is_last || asked || (step == 1 && options.enable_first_step_checkpoint)) return true;
  return options.interval_seconds == 0 && step % options.interval == 0;
}

void RunCheckpoints::leave_later_steps() {
  if (!went_back_to_ || run_.place.rank != 0) return;
  try {
    const std::vector<int64_t> steps = put_aside_later(*storage_, root_, *went_back_to_);
    if (!steps.empty()) {
      log_.warning("the run resumed from step {}: later checkpoints ({}) were renamed to {}", begun_at_,
                   fmt::join(steps, ", "), steps.size() == 1 ? fmt::format("replaced-{}", steps[0]) : "replaced-N");
    }
    went_back_to_.reset();
    // The checkpoints that disagreement.json is about have been renamed.
    const std::string problem = settle_disagreement(config_.job.dump_folder);
    if (!problem.empty()) log_.warning("{}; remove it, or the next start goes back once more", problem);
  } catch (const StorageError& error) {  // retried before the next save
    log_.warning("checkpoints of steps after {} are in the way of this run's checkpoints: {}", *went_back_to_,
                 error.what());
  }
}

void RunCheckpoints::after_step(const RunPosition& now, bool is_last, bool asked) {
  commands_.poll();
  if (!is_due(now.step, is_last, asked)) return;
  leave_later_steps();
  run_.reporter->begin_save(now.step);
  if (is_last) {
    save_last(now);
  } else {
    checkpointer_->save(now.step, state_.whole(with_all_positions(now)));
  }
  last_save_ = std::chrono::steady_clock::now();
}

void RunCheckpoints::save_last(const RunPosition& now) {
  begin_ending();
  if (!config_.checkpoint.last_save_model_only) {
    log_.info("Saving a full checkpoint at last step, step {}.", now.step);
    checkpointer_->save(now.step, state_.whole(with_all_positions(now)), /*now=*/true);
    return;
  }
  if (config_.checkpoint.last_save_in_hf) return save_hugging_face(now);
  log_.info("Saving a model only checkpoint in {} at last step, step {}.", config_.checkpoint.export_dtype, now.step);
  const CheckpointState weights = state_.model(now, scalar_type_named(config_.checkpoint.export_dtype));
  warn_of_infinities(weights);
  checkpointer_->save(now.step, weights, /*now=*/true);
}

void RunCheckpoints::warn_of_infinities(const CheckpointState& weights) const {
  if (config_.checkpoint.export_dtype != "float16") return;
  for (const StateTensor& tensor : weights.tensors) {
    if (!tensor.local.defined() || at::isfinite(tensor.local).all().item<bool>()) continue;
    log_.warning("{} holds numbers too large for float16: they are infinite in this checkpoint", tensor.tensor.name);
  }
}

void RunCheckpoints::save_hugging_face(const RunPosition& now) {
  log_.info("Saving a model only checkpoint in {} as Hugging Face's safetensors at last step, step {}.",
            config_.checkpoint.export_dtype, now.step);
  std::vector<std::string> notes;
  const HuggingFaceExport wanted = make_export(config_, model_, now.step, checkpointer_->run(), notes);
  for (const std::string& note : notes) run_.place.rank == 0 ? log_.warning(note) : log_.info(note);
  const CheckpointState weights = state_.model(now, *wanted.type);
  warn_of_infinities(weights);
  checkpointer_->save_by([&] { return save_hugging_face_together(*storage_, *barrier_, wanted, weights); });
}

bool RunCheckpoints::save_before_end(const RunPosition& now) {
  if (config_.checkpoint.load_only) return now.step == saved_step_;
  StopSignals::allow_for_saving();
  begin_ending();
  if (saved_step_ != now.step) {
    leave_later_steps();
    run_.reporter->begin_save(now.step);
    checkpointer_->save(now.step, state_.whole(with_all_positions(now)), /*now=*/true);
  }
  return has_checkpoint_ && saved_step_ == now.step;  // before its first step a new run has none
}

void RunCheckpoints::finish() {
  checkpointer_->finish();
  while (!commands_.finish_within(kCommandNotice)) {
    log_.info("waiting for checkpoint.on_commit of {}", commands_.waiting().front());
  }
  if (problem_.empty() || !is_ending_) return;
  throw Error(ExitCode::storage,
              fmt::format("the last checkpoint was not saved: {}; see to that, and {}", problem_, next_start()));
}

std::string RunCheckpoints::next_command() const {
  std::vector<std::string> without;
  if (config_.checkpoint.load_step >= 0) without.emplace_back("checkpoint.load_step");
  std::vector<std::string> states = config_.checkpoint.exclude_from_loading;
  std::erase(states, "lr_scheduler");  // the rate follows from the step
  if (!states.empty()) without.push_back(join(states, " and ") + " in checkpoint.exclude_from_loading");
  const bool is_the_same = without.empty() || saved_step_ == begun_at_;
  return is_the_same ? "the same command" : "the same command without " + join(without, " and ");
}

std::string RunCheckpoints::next_start() const {
  return has_checkpoint_ ? fmt::format("{} resumes from step {}", next_command(), saved_step_)
                         : "the same command starts from the beginning";
}

void RunCheckpoints::stop() {
  checkpointer_->finish();
  const bool all = commands_.finish_within(StopSignals::time_for(kCommandTimeAtStop));
  if (is_ending_ && !problem_.empty()) log_.shared_warning("the last checkpoint was not saved: {}", problem_);
  barrier_->wait_for_all();  // a launcher kills the others soon after the first rank exits with 75
  const std::vector<std::string> left = commands_.waiting();
  if (all || left.empty()) return;
  log_.warning("checkpoint.on_commit of {} has not ended; this run does not wait for it any longer", left.front());
  if (left.size() == 1) return;
  log_.warning("checkpoint.on_commit was not run for {}", join(std::span(left).subspan(1), ", "));
}

// Each reason is reported once; the end of the run reports that of the second try.
void RunCheckpoints::report_failed_end(const std::string& before) const {
  if (before.empty()) return log_.shared_warning("the last checkpoint was not saved; retrying once");
  if (before != problem_) log_.shared_warning("the first try failed: {}", before);
}

void RunCheckpoints::begin_ending() {
  checkpointer_->finish();
  is_ending_ = true;
  problem_.clear();
}

void RunCheckpoints::report(const SaveOutcome& outcome) {
  const std::string before = std::exchange(problem_, outcome.problem);
  if (!outcome.committed) {
    if (is_ending_) return report_failed_end(before);
    log_.shared_warning("{}; training continues and tries again at the next interval", outcome.sentence());
    return;
  }
  saved_step_ = outcome.step;
  has_checkpoint_ = true;
  run_.reporter->note_save(outcome.step);
  if (is_ending_ && !before.empty()) log_.shared_warning("the first try failed: {}", before);
  log_.info(outcome.sentence());
  if (run_.place.rank != 0 || config_.checkpoint.on_commit.empty()) return;
  commands_.submit(command_with(config_.checkpoint.on_commit, "{dir}", outcome.folder.string()),
                   fmt::format("step {}", outcome.step));
}

}  // namespace titan
