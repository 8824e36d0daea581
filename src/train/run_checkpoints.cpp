#include "titan/train/run_checkpoints.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/stop_signals.h"
#include "titan/base/text.h"
#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/data/batch_stream.h"
#include "titan/train/hugging_face.h"
#include "titan/train/job.h"
#include "titan/train/run_state.h"

namespace titan {
namespace {

/// A rank that writes much and lives makes the others wait this long at most.
constexpr std::chrono::hours kBarrierLimit{2};

/// At the end of a run: how often it says what command it waits for, and how long it does after a signal.
constexpr std::chrono::seconds kCommandNotice{10}, kCommandTimeAtStop{10};

SaveMode mode_of(const std::string& word) {
  if (word == "async") return SaveMode::asynchronous;
  return word == "async_with_pinned_mem" ? SaveMode::asynchronous_pinned : SaveMode::synchronous;
}

/// `name`: there may be another one beside that of the saving thread.
std::unique_ptr<RankBarrier> barrier_of(const JobConfig& config, const World& world, const Log& log,
                                        const std::string& name) {
  if (!world.is_distributed()) return make_lone_barrier();
  return make_store_barrier(world.store->clone(), name, world.rank, world.size,
                            {.limit = kBarrierLimit,
                             .patience = std::chrono::seconds(config.comm.train_timeout_seconds),
                             .waits = world.waits,
                             .tell = [&log](const std::string& line) { log.info(line); }});
}

/// All that a run has besides its weights.
const std::set<std::string> kBesidesModel{"optimizer", "dataloader", "train_state"};

/// Whether every start counts its steps from 0.
bool forgets_progress(const CheckpointSection& options) {
  const std::vector<std::string>& left_out = options.exclude_from_loading;
  return std::find(left_out.begin(), left_out.end(), "train_state") != left_out.end();
}

bool leaves_model_alone(const std::set<std::string>& left_out) {
  return std::includes(left_out.begin(), left_out.end(), kBesidesModel.begin(), kBesidesModel.end());
}

}  // namespace

RunCheckpoints::RunCheckpoints(const JobConfig& config, const World& world, RunParts parts, const Log& log)
    : config_(config),
      model_(make_model_request(config, parts.model.vocabulary)),
      assembly_(parts.assembly),
      state_(config, parts),
      log_(log),
      place_(parts.place),
      leads_(world.rank == 0),
      rank_(world.rank),
      root_(std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder),
      commands_([this](const std::string& command, int code) {
        if (code != 0) log_.warning("checkpoint.on_commit ended with exit code {}: {}", code, command);
      }) {
  if (splits_by_rank(config, place_)) data_barrier_ = barrier_of(config, world, log, "data-positions");
  const CheckpointSection& options = config.checkpoint;
  const CheckpointerOptions how{
      root_, mode_of(options.async_mode), {options.keep_latest_k, options.keep_every}, options.load_only};
  const CheckpointEvents events{[this](const SaveOutcome& outcome) { report(outcome); },
                                [this](const std::string& warning) { log_.warning(warning); }};
  // Said now and not after the last step.
  if (options.last_save_in_hf && !options.load_only) adapter_of(model_).hugging_face(model_);
  checkpointer_ =
      std::make_unique<Checkpointer>(make_posix_storage(), barrier_of(config, world, log, "checkpoints"), how, events);
}

RunPosition RunCheckpoints::finished(const std::filesystem::path& folder, std::string_view form,
                                     const std::function<void(int64_t)>& read, Notes& notes) const {
  const int64_t step = step_of(folder.filename().string()).value_or(0);
  if (step < config_.training.steps) {
    throw UnsuitableError(fmt::format("holds the model alone{}: training cannot resume from it", form));
  }
  read(step);
  notes.push_back(fmt::format("step {} holds the model of a finished run: nothing of training.steps = {} is left to do",
                              step, config_.training.steps));
  return {.step = step, .tokens = 0, .optimizer_steps = step, .data = std::nullopt};
}

RunPosition RunCheckpoints::finished_run(OpenCheckpoint& checkpoint, Notes& notes) const {
  const auto read = [&](int64_t step) { restore_run(checkpoint, state_.parameters(step), rank_, kBesidesModel); };
  return finished(checkpoint.folder(), " (checkpoint.last_save_model_only)", read, notes);
}

bool RunCheckpoints::finished_export(Storage& storage, const std::filesystem::path& folder, RunPosition& start,
                                     Notes& notes) const {
  notes.clear();  // of an attempt that failed
  bool verified = false;
  const auto read = [&](int64_t step) {
    check_settings(folder, model_, WeightUse::resume);
    const HuggingFaceWeights weights = read_hugging_face(
        storage, folder, std::nullopt, adapter_of(model_).hugging_face(model_), state_.parameters(step), rank_);
    if (weights.step) expect_step(folder, *weights.step);
    verified = weights.verified;
  };
  start = finished(folder, ", in Hugging Face's form (checkpoint.last_save_in_hf)", read, notes);
  return verified;
}

void RunCheckpoints::check_facts(const OpenCheckpoint& checkpoint, WeightUse use, Notes& notes) const {
  const std::string changed = check_model_facts(checkpoint, model_, use);
  if (!changed.empty()) notes.push_back(changed);
}

RunPosition RunCheckpoints::restore(OpenCheckpoint& checkpoint, Notes& notes, WeightUse use) {
  notes.clear();  // of an attempt that failed
  changed_options_.clear();
  std::set<std::string> leave(config_.checkpoint.exclude_from_loading.begin(),
                              config_.checkpoint.exclude_from_loading.end());
  if (leave.contains("lr_scheduler")) {
    notes.emplace_back(
        "checkpoint.exclude_from_loading: lr_scheduler makes no difference: the learning rate follows from the step "
        "and from this config alone");
  }
  // A seed is a model: whatever is beside it has not begun.
  if (checkpoint.folder().filename() == step_folder(0)) leave.insert(kBesidesModel.begin(), kBesidesModel.end());
  if (!leave.contains("model")) check_facts(checkpoint, use, notes);
  if (!holds_run(checkpoint.index()) && !leaves_model_alone(leave)) {
    if (holds_moments(checkpoint.index())) {
      constexpr const char* kWhat = "holds the optimizer's moments and no train_state.step, so its step is not known";
      if (use == WeightUse::resume) throw UnsuitableError(kWhat);
      throw UnsuitableError(fmt::format("it {}; checkpoint.initial_load_model_only = true takes the model", kWhat));
    }
    if (use == WeightUse::resume) return finished_run(checkpoint, notes);
    throw UnsuitableError("it holds the model alone; checkpoint.initial_load_model_only = true takes that");
  }
  const RestoredRun restored = restore_run(checkpoint, state_.parameters(/*step=*/0), rank_, leave,
                                           place_.mesh.data_parallel_rank(rank_), place_.mesh.world());
  if (!leaves_model_alone(leave)) notes.insert(notes.end(), restored.notes.begin(), restored.notes.end());
  if (!restored.progress) return {};
  const RunProgress& progress = *restored.progress;
  const std::optional<int64_t> named = step_of(checkpoint.folder().filename().string());
  if (use == WeightUse::resume) expect_step(checkpoint.folder(), progress.step);
  if (named && *named != progress.step) {
    notes.push_back(
        fmt::format("{} holds step {}, whatever its name says", checkpoint.folder().string(), progress.step));
  }
  const std::optional<Manifest>& manifest = checkpoint.manifest();
  ConfigChanges changes =
      find_config_changes(manifest ? manifest->facts : nlohmann::ordered_json(), progress.step, config_, place_);
  changed_options_ = std::move(changes.line);
  std::move(changes.warnings.begin(), changes.warnings.end(), std::back_inserter(notes));
  RunPosition start{progress.step, progress.tokens, progress.optimizer_steps.value_or(progress.step), std::nullopt};
  if (restored.has_data_position) {
    if (progress.step > 0) check_stream_options(progress.data_position, config_);
    start.data = data_position_from_json(progress.data_position, data_barrier_ != nullptr,
                                         place_.mesh.data_parallel_degree(), place_.mesh.data_parallel_rank(rank_));
  }
  start.samples = restored.samples;
  start.guard = guard_state_from_json(progress.guard);
  return start;
}

LoadOutcome RunCheckpoints::load_hugging_face(Notes& notes) {
  const std::filesystem::path folder = config_.checkpoint.initial_load_path.value_or(config_.model.hf_assets_path);
  expect_their_model(folder);
  const std::string changed = check_settings(folder, model_, WeightUse::begin);
  if (!changed.empty()) notes.push_back(changed);
  const std::optional<ScaleBlock> quantised =
      expected_quantisation(folder, config_.checkpoint.initial_load_in_hf_quantized);
  return checkpointer_->load_by([&](Storage& storage, RankBarrier& meeting) {
    return load_hugging_face_together(storage, meeting, folder, quantised, adapter_of(model_).hugging_face(model_),
                                      state_.parameters(/*step=*/0));
  });
}

LoadOutcome RunCheckpoints::load_initial(RunPosition& start, Notes& notes) {
  if (config_.checkpoint.initial_load_in_hf) return load_hugging_face(notes);
  return checkpointer_->load_folder(*config_.checkpoint.initial_load_path, [&](OpenCheckpoint& checkpoint) {
    if (config_.checkpoint.initial_load_model_only) {
      check_facts(checkpoint, WeightUse::begin, notes);
      restore_run(checkpoint, state_.parameters(/*step=*/0), rank_, kBesidesModel);
    } else {
      start = restore(checkpoint, notes, WeightUse::begin);
    }
  });
}

LoadOutcome RunCheckpoints::load_newest(RunPosition& start, Notes& notes) {
  const CheckpointSection& options = config_.checkpoint;
  const std::optional<int64_t> step = options.load_step < 0 ? std::nullopt : std::optional(options.load_step);
  LoadOutcome outcome = checkpointer_->load(
      step, [&](OpenCheckpoint& checkpoint) { start = restore(checkpoint, notes, WeightUse::resume); },
      [&](Storage& storage, const std::filesystem::path& folder) {
        return finished_export(storage, folder, start, notes);
      });
  if (!outcome.step && options.require_resume) {
    throw Error(ExitCode::storage,
                fmt::format("checkpoint.require_resume = true, and {} holds no checkpoint", root_.string()));
  }
  if (outcome.step && !options.exclude_from_loading.empty()) {
    outcome.line += fmt::format("; left out: {}", join(options.exclude_from_loading, ", "));
  }
  const bool begins_elsewhere = options.initial_load_path || options.initial_load_in_hf;
  if (!outcome.step && begins_elsewhere) {
    outcome = load_initial(start, notes);
  } else if (begins_elsewhere) {
    notes.push_back(fmt::format("checkpoint.{} was not looked at: the run has checkpoints of its own",
                                options.initial_load_path ? "initial_load_path" : "initial_load_in_hf"));
  }
  return outcome;
}

RunCheckpoints::Start RunCheckpoints::load() {
  Start start;
  RunPosition& position = start.position;
  Notes notes;
  const LoadOutcome outcome = load_newest(position, notes);
  log_.info(outcome.line);
  if (!changed_options_.empty()) log_.info(changed_options_);
  for (const std::string& warning : outcome.warnings) log_.warning(warning);
  for (const std::string& note : notes) leads_ ? log_.warning(note) : log_.info(note);
  if (!outcome.folder.empty()) assembly_.executor->weights_changed();
  start.is_trained = !outcome.folder.empty() && outcome.folder.filename() != step_folder(0);
  begun_at_ = saved_step_ = position.step;
  has_checkpoint_ = outcome.step.has_value();
  const bool went_back =
      config_.checkpoint.load_step >= 0 || forgets_progress(config_.checkpoint) || outcome.passed_unread;
  if (has_checkpoint_ && went_back) went_back_to_ = position.step;
  if (config_.checkpoint.load_only) return start;
  if (const std::string problem = checkpointer_->rehearse(); !problem.empty() && leads_) {
    log_.warning("checkpoints cannot be written now: {}; training begins all the same", problem);
  }
  return start;
}

RunPosition RunCheckpoints::with_all_positions(RunPosition now) {
  if (!data_barrier_) return now;
  now.rank_data.resize(static_cast<size_t>(place_.mesh.data_parallel_degree()));
  const nlohmann::json mine{{"rank", place_.mesh.data_parallel_rank(rank_)},
                            {"state", to_json(now.data.value_or(StreamState()))}};
  const std::vector<std::string> all = data_barrier_->exchange(json_text(mine));
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
    log_.warning("checkpoint.{} was not looked at: a seed is the model as it is initialised",
                 config_.checkpoint.initial_load_path ? "initial_load_path" : "initial_load_in_hf");
  }
  checkpointer_->save(0, state_.whole({}), /*now=*/true);
  finish();
  const std::vector<FoundCheckpoint> found = find_checkpoints(*make_posix_storage(), root_);
  if (found.empty() || found.front().step == 0) return;
  log_.warning("{} holds step {}, too: runs there begin with that and not with the seed", root_.string(),
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
  if (!went_back_to_ || !leads_) return;
  try {
    const std::vector<int64_t> steps = checkpointer_->put_aside_later(*went_back_to_);
    if (!steps.empty()) {
      log_.warning("the run resumed from step {}: what was saved of later steps ({}) is called {} now", *went_back_to_,
                   fmt::join(steps, ", "), steps.size() == 1 ? fmt::format("replaced-{}", steps[0]) : "replaced-N");
    }
    went_back_to_.reset();
  } catch (const StorageError& error) {  // tried again before the next save
    log_.warning("what was saved of steps after {} is in the way of this run's checkpoints: {}", *went_back_to_,
                 error.what());
  }
}

void RunCheckpoints::after_step(const RunPosition& now, bool is_last, bool asked) {
  commands_.poll();
  if (!is_due(now.step, is_last, asked)) return;
  leave_later_steps();
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
    log_.warning("{} holds numbers too large for float16: they are infinite in this checkpoint",
                 tensor.placed.tensor.name);
  }
}

void RunCheckpoints::save_hugging_face(const RunPosition& now) {
  log_.info("Saving a model only checkpoint in {} as Hugging Face's safetensors at last step, step {}.",
            config_.checkpoint.export_dtype, now.step);
  std::vector<std::string> notes;
  const HuggingFaceExport wanted = make_export(config_, model_, now.step, checkpointer_->run(), notes);
  for (const std::string& note : notes) leads_ ? log_.warning(note) : log_.info(note);
  const CheckpointState weights = state_.model(now, *wanted.type);
  warn_of_infinities(weights);
  checkpointer_->save_by([&](Storage& storage, RankBarrier& meeting) {
    return save_hugging_face_together(storage, meeting, wanted, weights);
  });
}

bool RunCheckpoints::save_before_end(const RunPosition& now) {
  if (config_.checkpoint.load_only) return now.step == saved_step_;
  StopSignals::allow_for_saving();
  begin_ending();
  if (saved_step_ != now.step) {
    leave_later_steps();
    checkpointer_->save(now.step, state_.whole(with_all_positions(now)), /*now=*/true);
  }
  return saved_step_ == now.step;
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
  if (forgets_progress(config_.checkpoint)) without.emplace_back("train_state in checkpoint.exclude_from_loading");
  const bool is_the_same = without.empty() || saved_step_ == begun_at_;
  return is_the_same ? "the same command" : "the same command without " + join(without, " and ");
}

std::string RunCheckpoints::next_start() const {
  return has_checkpoint_ ? fmt::format("{} resumes from step {}", next_command(), saved_step_)
                         : "the same command begins anew";
}

void RunCheckpoints::stop() {
  checkpointer_->finish();
  const bool all = commands_.finish_within(StopSignals::time_for(kCommandTimeAtStop));
  if (is_ending_ && !problem_.empty()) log_.shared_warning("the last checkpoint was not saved: {}", problem_);
  checkpointer_->meet();  // a launcher ends the others soon after the first rank that ends with 75
  const std::vector<std::string> left = commands_.waiting();
  if (all || left.empty()) return;
  log_.warning("checkpoint.on_commit of {} has not ended; this run does not wait for it any longer", left.front());
  if (left.size() == 1) return;
  log_.warning("checkpoint.on_commit was not run for {}", join(std::span(left).subspan(1), ", "));
}

// A reason is reported once: the end of the run reports that of the second attempt.
void RunCheckpoints::tell_end_attempt(const std::string& before) const {
  if (before.empty()) return log_.shared_warning("the last checkpoint was not saved; it is tried once more");
  if (before != problem_) log_.shared_warning("the first attempt failed: {}", before);
}

void RunCheckpoints::begin_ending() {
  checkpointer_->finish();
  is_ending_ = true;
  problem_.clear();
}

void RunCheckpoints::report(const SaveOutcome& outcome) {
  const std::string before = std::exchange(problem_, outcome.problem);
  if (!outcome.committed) {
    if (is_ending_) return tell_end_attempt(before);
    log_.shared_warning("{}; training continues and tries again at the next interval", outcome.sentence());
    return;
  }
  saved_step_ = outcome.step;
  has_checkpoint_ = true;
  if (is_ending_ && !before.empty()) log_.shared_warning("the first attempt failed: {}", before);
  log_.info(outcome.sentence());
  if (!leads_ || config_.checkpoint.on_commit.empty()) return;
  commands_.submit(command_with(config_.checkpoint.on_commit, "{dir}", outcome.folder.string()),
                   fmt::format("step {}", outcome.step));
}

}  // namespace titan
