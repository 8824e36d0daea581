// Chooses what a run starts from: its newest checkpoint, the checkpoint or Hugging Face folder that `checkpoint.*`
// names, or the export of a finished run. The checkpoint part reads the bytes; all ranks make the same choice.

#include <algorithm>
#include <set>
#include <utility>

#include "run_checkpoints.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/job.h"
#include "titan/report/attempt_record.h"
#include "titan/report/run_history.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/hugging_face.h"
#include "titan/train/run.h"

namespace titan {
namespace {

/// The states beside the weights; not lr_scheduler, since the rate follows from the step and the config.
const std::set<std::string> kBesidesModel{"optimizer", "dataloader", "train_state"};

bool leaves_model_alone(const std::set<std::string>& left_out) {
  return std::includes(left_out.begin(), left_out.end(), kBesidesModel.begin(), kBesidesModel.end());
}

class RunLoader {
 public:
  RunLoader(const Run& run, const StateDict& state, Checkpointer& checkpointer)
      : config_(run.config),
        options_(run.config.checkpoint),
        place_(run.place),
        model_(make_model_request(run.config, run.model.description.vocabulary)),
        state_(state),
        checkpointer_(checkpointer),
        log_(run.log) {}

  StartingPoint load() { return report(load_newest()); }
  StartingPoint load_initial_alone() { return report(load_initial()); }

 private:
  StartingPoint report(const LoadOutcome& outcome);
  /// Checkpoints that an earlier attempt saved after the last step on which its ranks agreed are not loaded.
  LoadLimit find_limit();
  /// Loads the run's newest checkpoint or that of checkpoint.load_step; if there is none, what the config names.
  LoadOutcome load_newest();
  LoadOutcome load_initial();
  LoadOutcome load_hugging_face();
  /// Loads all states that checkpoint.exclude_from_loading does not exclude.
  RunPosition restore(OpenCheckpoint& checkpoint, WeightUse use);
  /// The weights alone, whatever else the checkpoint holds.
  void restore_weights(OpenCheckpoint& checkpoint);
  /// Restores from a checkpoint that holds only the model.
  RunPosition restore_model(OpenCheckpoint& checkpoint, WeightUse use);
  RunPosition position_of(const OpenCheckpoint& checkpoint, const SavedProgress& progress, WeightUse use);
  /// Loads a finished run that saved only its model in `folder`; `read` loads it.
  RunPosition restore_finished(const std::filesystem::path& folder, std::string_view form,
                               const std::function<void()>& read);
  /// The same for an export in Hugging Face's format. True if every byte matched its hash.
  bool restore_export(Storage& storage, const std::filesystem::path& folder);
  void check_facts(const OpenCheckpoint& checkpoint, WeightUse use);
  /// A checkpoint of an earlier titan, whose optimizer counted skipped steps too, if its run skipped some.
  void warn_of_counted_skips(const OpenCheckpoint& checkpoint, WeightUse use);
  void begin_attempt();

  const JobConfig& config_;
  const CheckpointSection& options_;
  const MeshPlace& place_;
  const ModelRequest model_;
  const StateDict& state_;
  Checkpointer& checkpointer_;
  const Log& log_;
  RunPosition position_;
  std::vector<std::string> notes_;  // warnings of the current attempt to load
  std::string changed_options_;     // options that differ from the loaded checkpoint's
  std::optional<int64_t> last_agreeing_;
};

StartingPoint RunLoader::report(const LoadOutcome& outcome) {
  log_.info(outcome.line);
  if (!changed_options_.empty()) log_.info(changed_options_);
  for (const std::string& warning : outcome.warnings) log_.warning(warning);
  for (const std::string& note : notes_) place_.rank == 0 ? log_.warning(note) : log_.info(note);
  StartingPoint start{.position = position_, .has_weights = !outcome.folder.empty()};
  start.is_trained = start.has_weights && outcome.folder.filename() != step_folder(0);
  start.has_checkpoint = outcome.step.has_value();
  start.went_back = options_.load_step >= 0 || forgets_progress(options_) || outcome.passed_unread;
  start.last_agreeing = last_agreeing_;
  return start;
}

LoadLimit RunLoader::find_limit() {
  if (place_.rank != 0 || options_.load_step >= 0) return {};
  const std::filesystem::path folder = config_.job.dump_folder;
  last_agreeing_ = last_agreeing_step(folder, folder / options_.folder);
  if (!last_agreeing_) return {};
  return {.last = last_agreeing_,
          .why = fmt::format("saved after step {}, the last on which the ranks agreed ({})", *last_agreeing_,
                             kDisagreementFile)};
}

LoadOutcome RunLoader::load_newest() {
  const std::optional<int64_t> step = options_.load_step < 0 ? std::nullopt : std::optional(options_.load_step);
  LoadOutcome outcome = checkpointer_.load(
      step, [&](OpenCheckpoint& checkpoint) { position_ = restore(checkpoint, WeightUse::resume); },
      [&](Storage& storage, const std::filesystem::path& folder) { return restore_export(storage, folder); },
      find_limit());
  if (!outcome.step && options_.require_resume) {
    const std::filesystem::path root = std::filesystem::path(config_.job.dump_folder) / options_.folder;
    const std::string which =
        last_agreeing_ ? fmt::format(" up to step {}, the last on which the ranks agreed", *last_agreeing_) : "";
    throw Error(ExitCode::storage,
                fmt::format("checkpoint.require_resume = true, and {} holds no checkpoint{}; name the run's folder in "
                            "job.dump_folder and checkpoint.folder, or leave require_resume out to begin a run",
                            root.string(), which));
  }
  if (outcome.step && !options_.exclude_from_loading.empty()) {
    outcome.line += fmt::format("; left out: {}", join(options_.exclude_from_loading, ", "));
  }
  if (!options_.initial_load_path && !options_.initial_load_in_hf) return outcome;
  if (!outcome.step) return load_initial();
  notes_.push_back(fmt::format("checkpoint.{} has no effect: the run has checkpoints",
                               options_.initial_load_path ? "initial_load_path" : "initial_load_in_hf"));
  return outcome;
}

LoadOutcome RunLoader::load_initial() {
  if (options_.initial_load_in_hf) return load_hugging_face();
  const auto load = [&](OpenCheckpoint& checkpoint) {
    if (options_.initial_load_model_only) {
      check_facts(checkpoint, WeightUse::begin);
      restore_weights(checkpoint);
    } else {
      position_ = restore(checkpoint, WeightUse::begin);
    }
  };
  return load_folder_together(checkpointer_.storage(), checkpointer_.barrier(), *options_.initial_load_path, load);
}

LoadOutcome RunLoader::load_hugging_face() {
  const std::filesystem::path folder = options_.initial_load_path.value_or(config_.model.hf_assets_path);
  expect_their_model(folder);
  const std::string changed = check_settings(folder, model_, WeightUse::begin);
  if (!changed.empty()) notes_.push_back(changed);
  const std::optional<ScaleBlock> quantised = expected_quantisation(folder, options_.initial_load_in_hf_quantized);
  return load_hugging_face_together(checkpointer_.storage(), checkpointer_.barrier(), folder, quantised,
                                    adapter_of(model_).hugging_face(model_), state_.parameters());
}

RunPosition RunLoader::restore(OpenCheckpoint& checkpoint, WeightUse use) {
  begin_attempt();
  std::set<std::string> leave(options_.exclude_from_loading.begin(), options_.exclude_from_loading.end());
  if (leave.contains("lr_scheduler")) {
    notes_.emplace_back(
        "checkpoint.exclude_from_loading: lr_scheduler makes no difference: the learning rate follows from the step "
        "and from this config alone");
  }
  // A seed checkpoint (step 0) has only a model: the other states keep their initial values.
  if (checkpoint.folder().filename() == step_folder(0)) leave.insert(kBesidesModel.begin(), kBesidesModel.end());
  if (!leave.contains("model")) check_facts(checkpoint, use);
  if (!holds_run(checkpoint.index()) && !leaves_model_alone(leave)) return restore_model(checkpoint, use);
  std::vector<std::string> notes;
  const std::optional<SavedProgress> progress =
      restore_run(checkpoint, state_.parameters(), place_.rank, notes, leave,
                  place_.mesh.data_parallel_rank(place_.rank), place_.mesh.world());
  if (holds_run(checkpoint.index()) && !leave.contains("optimizer")) warn_of_counted_skips(checkpoint, use);
  if (!leaves_model_alone(leave)) notes_.insert(notes_.end(), notes.begin(), notes.end());
  return progress ? position_of(checkpoint, *progress, use) : RunPosition();
}

void RunLoader::restore_weights(OpenCheckpoint& checkpoint) {
  std::vector<std::string> ignored;  // that the other states are not restored is what was asked for
  restore_run(checkpoint, state_.parameters(), place_.rank, ignored, kBesidesModel);
}

RunPosition RunLoader::restore_model(OpenCheckpoint& checkpoint, WeightUse use) {
  if (holds_moments(checkpoint.index())) {
    constexpr const char* kWhat = "holds the optimizer's moments and no train_state.step, so its step is not known";
    if (use == WeightUse::resume) throw UnsuitableError(kWhat);
    throw UnsuitableError(fmt::format("it {}; checkpoint.initial_load_model_only = true takes the model", kWhat));
  }
  if (use != WeightUse::resume) {
    throw UnsuitableError("it holds the model alone; checkpoint.initial_load_model_only = true takes that");
  }
  return restore_finished(checkpoint.folder(), " (checkpoint.last_save_model_only)",
                          [&] { restore_weights(checkpoint); });
}

RunPosition RunLoader::position_of(const OpenCheckpoint& checkpoint, const SavedProgress& progress, WeightUse use) {
  const std::optional<int64_t> named = step_of(checkpoint.folder().filename().string());
  if (use == WeightUse::resume) expect_step(checkpoint.folder(), progress.step);
  if (named && *named != progress.step) {
    notes_.push_back(
        fmt::format("{} holds step {}, not the step in its name", checkpoint.folder().string(), progress.step));
  }
  const std::optional<Manifest>& manifest = checkpoint.manifest();
  ConfigChanges changes =
      find_config_changes(manifest ? manifest->facts : nlohmann::ordered_json(), progress.step, config_, place_);
  changed_options_ = std::move(changes.line);
  std::move(changes.warnings.begin(), changes.warnings.end(), std::back_inserter(notes_));
  RunPosition position{.step = progress.step, .tokens = progress.tokens.value_or(0), .data = std::nullopt};
  position.counters = total_counters_from_json(progress.counters);
  if (!progress.data_position.is_null()) {
    if (progress.step > 0) check_stream_options(progress.data_position, config_);
    position.data =
        data_position_from_json(progress.data_position, splits_by_rank(config_, place_),
                                place_.mesh.data_parallel_degree(), place_.mesh.data_parallel_rank(place_.rank));
  }
  position.samples = progress.samples;
  position.guard = guard_state_from_json(progress.guard);
  return position;
}

RunPosition RunLoader::restore_finished(const std::filesystem::path& folder, std::string_view form,
                                        const std::function<void()>& read) {
  const int64_t step = step_of(folder.filename().string()).value_or(0);
  if (step < config_.training.steps) {
    throw UnsuitableError(fmt::format("holds the model alone{}: training cannot resume from it", form));
  }
  read();
  notes_.push_back(
      fmt::format("step {} holds the model of a finished run: nothing of training.steps = {} is left to do", step,
                  config_.training.steps));
  return {.step = step, .tokens = 0, .data = std::nullopt};
}

bool RunLoader::restore_export(Storage& storage, const std::filesystem::path& folder) {
  begin_attempt();
  bool verified = false;
  const auto read = [&] {
    check_settings(folder, model_, WeightUse::resume);
    const HuggingFaceWeights weights = read_hugging_face(
        storage, folder, std::nullopt, adapter_of(model_).hugging_face(model_), state_.parameters(), place_.rank);
    if (weights.step) expect_step(folder, *weights.step);
    verified = weights.verified;
  };
  position_ = restore_finished(folder, ", in Hugging Face's form (checkpoint.last_save_in_hf)", read);
  return verified;
}

void RunLoader::check_facts(const OpenCheckpoint& checkpoint, WeightUse use) {
  const std::string changed = check_model_facts(checkpoint, model_, use);
  if (!changed.empty()) notes_.push_back(changed);
}

void RunLoader::warn_of_counted_skips(const OpenCheckpoint& checkpoint, WeightUse use) {
  if (!checkpoint.manifest() || checkpoint.index().values.contains(kCountersKey) || place_.rank != 0) return;
  const std::filesystem::path run = use == WeightUse::resume ? std::filesystem::path(config_.job.dump_folder)
                                                             : checkpoint.folder().parent_path().parent_path();
  const std::filesystem::path metrics = run / "metrics.jsonl";
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(metrics, unknown)) return;
  const std::optional<double> skipped =
      read_history(metrics, step_of(checkpoint.folder().filename().string()).value_or(0) + 1).newest("skipped_steps");
  if (skipped.value_or(0) <= 0) return;
  notes_.push_back(
      fmt::format("the optimizer's step count is taken as the checkpoint has it, and the version that saved it counted "
                  "skipped steps too ({} of them in {}): Adam's bias correction is that of a later step",
                  *skipped, metrics.string()));
}

// Discards the results of a failed attempt.
void RunLoader::begin_attempt() {
  notes_.clear();
  changed_options_.clear();
}

}  // namespace

bool forgets_progress(const CheckpointSection& options) {
  const std::vector<std::string>& left_out = options.exclude_from_loading;
  return std::find(left_out.begin(), left_out.end(), "train_state") != left_out.end();
}

StartingPoint load_run(const Run& run, const StateDict& state, Checkpointer& checkpointer) {
  return RunLoader(run, state, checkpointer).load();
}

StartingPoint load_initial_weights(const Run& run, const StateDict& state, Checkpointer& checkpointer) {
  return RunLoader(run, state, checkpointer).load_initial_alone();
}

}  // namespace titan
