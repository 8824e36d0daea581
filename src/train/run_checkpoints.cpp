#include "titan/train/run_checkpoints.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/stop_signals.h"
#include "titan/checkpoint/store_meeting.h"
#include "titan/data/batch_stream.h"
#include "titan/train/job.h"

namespace titan {
namespace {

/// A rank that writes much makes the others wait this long at most.
constexpr std::chrono::hours kMeetingTimeout{2};

SaveMode mode_of(const std::string& word) {
  if (word == "async") return SaveMode::asynchronous;
  return word == "async_with_pinned_mem" ? SaveMode::asynchronous_pinned : SaveMode::synchronous;
}

std::unique_ptr<RankMeeting> meeting_of(const World& world) {
  if (!world.is_distributed()) return make_lone_meeting();
  return make_store_meeting(world.store->clone(), "checkpoints", world.rank, world.size, kMeetingTimeout);
}

at::ScalarType type_of(const std::string& word) {
  return word == "float16" ? at::kHalf : word == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

std::string replaced(std::string text, std::string_view what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

/// What people may want to know of a checkpoint without loading it.
nlohmann::ordered_json facts_of(const RunProgress& progress, const DeviceMesh& mesh) {
  nlohmann::ordered_json layout;
  for (const MeshAxis axis : kMeshAxes) layout[std::string(name(axis))] = mesh.size(axis);
  return {{"tokens", progress.tokens}, {"layout", std::move(layout)}};
}

}  // namespace

RunCheckpoints::RunCheckpoints(const JobConfig& config, const World& world, RunParts parts, const Log& log)
    : config_(config),
      parts_(parts),
      log_(log),
      leads_(world.rank == 0),
      rank_(world.rank),
      root_(std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder) {
  const Retention retention{config.checkpoint.keep_latest_k, config.checkpoint.keep_every};
  checkpointer_ =
      std::make_unique<Checkpointer>(make_posix_storage(), meeting_of(world),
                                     CheckpointerOptions{root_, mode_of(config.checkpoint.async_mode), retention},
                                     [this](const SaveReport& saved) { report(saved); });
}

std::vector<SavedParameter> RunCheckpoints::parameters(int64_t step) const {
  const OptimizerOptions options = make_optimizer_options(config_);
  const bool foreach = options.implementation == OptimizerImplementation::foreach;
  const bool fused = options.implementation == OptimizerImplementation::fused;
  std::vector<SavedParameter> saved;
  for (size_t i = 0; i < parts_.assembly.parameters.size(); ++i) {
    const Parameter& parameter = *parts_.assembly.parameters[i];
    saved.push_back({parameter.name(),
                     parameter.spec().shape,
                     boxes_of(parameter.layout(), parts_.place.mesh),
                     parameter.master,
                     parts_.optimizer.first_moment(i),
                     parts_.optimizer.second_moment(i),
                     {}});
  }
  for (const ParameterGroup& group : parts_.groups) {
    for (const size_t index : group.members) {
      if (!parts_.assembly.parameters[index]->trainable()) continue;
      saved[index].settings = {.lr = parts_.schedule.rate(std::max<int64_t>(1, step)) * group.lr_multiplier,
                               .initial_lr = config_.optimizer.lr * group.lr_multiplier,
                               .beta1 = options.beta1,
                               .beta2 = options.beta2,
                               .epsilon = options.epsilon,
                               .weight_decay = options.weight_decay * group.weight_decay_multiplier,
                               .decoupled_decay = options.decoupled_decay,
                               .fused = fused ? std::optional(true) : std::nullopt,
                               .foreach = fused ? std::nullopt : std::optional(foreach)};
    }
  }
  return saved;
}

CheckpointState RunCheckpoints::whole_state(const RunProgress& progress) const {
  CheckpointState state = describe_run(parameters(progress.step), progress, KeyStyle::bare);
  state.facts = facts_of(progress, parts_.place.mesh);
  return state;
}

RunStart RunCheckpoints::restore(OpenCheckpoint& checkpoint, std::vector<std::string>& notes) {
  std::set<std::string> leave(config_.checkpoint.exclude_from_loading.begin(),
                              config_.checkpoint.exclude_from_loading.end());
  // A seed is a model: whatever lies beside it has not begun.
  if (checkpoint.folder().filename() == step_folder(0)) leave.insert({"optimizer", "dataloader", "train_state"});
  const std::vector<SavedParameter> saved = parameters(/*step=*/0);
  const RestoredRun restored = restore_run(checkpoint, saved, rank_, leave);
  notes = restored.notes;
  RunStart start;
  if (!restored.progress) return start;
  start = {restored.progress->step, restored.progress->tokens, std::nullopt};
  if (restored.has_data_position) start.data = stream_state_from_json(restored.progress->data_position);
  return start;
}

LoadOutcome RunCheckpoints::load_from(const std::filesystem::path& folder, RunStart& start,
                                      std::vector<std::string>& notes) {
  // `initial_load_path` names one checkpoint; what lies beside it is somebody else's.
  const LoadAttempt model_only = [&](OpenCheckpoint& checkpoint) {
    if (config_.checkpoint.initial_load_model_only) {
      restore_run(checkpoint, parameters(/*step=*/0), rank_, {"optimizer", "dataloader", "train_state"});
    } else {
      start = restore(checkpoint, notes);
    }
  };
  return checkpointer_->load_folder(folder, model_only);
}

RunStart RunCheckpoints::load() {
  const CheckpointSection& options = config_.checkpoint;
  RunStart start;
  std::vector<std::string> notes;
  const std::optional<int64_t> step = options.load_step < 0 ? std::nullopt : std::optional(options.load_step);
  LoadOutcome outcome =
      checkpointer_->load(step, [&](OpenCheckpoint& checkpoint) { start = restore(checkpoint, notes); });
  if (!outcome.step && options.initial_load_path) {
    outcome = load_from(*options.initial_load_path, start, notes);
  } else if (!outcome.step && options.require_resume) {
    throw Error(ExitCode::storage,
                fmt::format("checkpoint.require_resume = true, and {} holds no checkpoint", root_.string()));
  } else if (options.initial_load_path) {
    notes.emplace_back("checkpoint.initial_load_path was not looked at: the run has checkpoints of its own");
  }
  log_.info(outcome.line);
  for (const std::string& warning : outcome.warnings) log_.warning(warning);
  for (const std::string& note : notes) leads_ ? log_.warning(note) : log_.info(note);
  if (!outcome.folder.empty()) parts_.assembly.executor->weights_changed();
  return start;
}

void RunCheckpoints::save_seed() {
  const RunProgress progress{0, 0, to_json(StreamState()), parts_.place.mesh.data_parallel_degree()};
  checkpointer_->save(0, whole_state(progress), /*now=*/true);
}

void RunCheckpoints::after_step(int64_t step, int64_t tokens, const StreamState& data, bool is_last) {
  if (config_.checkpoint.load_only || !is_due(step, is_last)) return;
  const RunProgress progress{step, tokens, to_json(data), parts_.place.mesh.data_parallel_degree()};
  if (is_last) {
    save_last(step, progress);
  } else {
    checkpointer_->save(step, whole_state(progress));
  }
  last_save_ = std::chrono::steady_clock::now();
}

void RunCheckpoints::save_last(int64_t step, const RunProgress& progress) {
  if (!config_.checkpoint.last_save_model_only) {
    log_.info("Saving a full checkpoint at last step, step {}.", step);
    checkpointer_->save(step, whole_state(progress), /*now=*/true);
    return;
  }
  const at::ScalarType type = type_of(config_.checkpoint.export_dtype);
  log_.info("Saving a model only checkpoint in {} at last step, step {}.", config_.checkpoint.export_dtype, step);
  CheckpointState state = describe_model(parameters(step), KeyStyle::bare);
  for (StateTensor& tensor : state.tensors) {
    tensor.placed.tensor.type = type;
    tensor.local = tensor.local.to(type);
  }
  state.facts = facts_of(progress, parts_.place.mesh);
  checkpointer_->save(step, state, /*now=*/true);
}

bool RunCheckpoints::is_due(int64_t step, bool is_last) {
  const CheckpointSection& options = config_.checkpoint;
  if (is_last || (step == 1 && options.enable_first_step_checkpoint)) return true;
  return options.interval_seconds > 0 ? clock_says_so() : step % options.interval == 0;
}

bool RunCheckpoints::clock_says_so() {
  const auto passed = std::chrono::steady_clock::now() - last_save_;
  const bool mine = passed >= std::chrono::seconds(config_.checkpoint.interval_seconds);
  if (!parts_.world) return mine;
  // The first rank whose clock says so decides for all.
  at::Tensor due = at::full({1}, int64_t{mine}, at::TensorOptions(parts_.device).dtype(at::kLong));
  parts_.world->all_reduce({due}, Reduction::max)->wait();
  return due.item<int64_t>() != 0;
}

void RunCheckpoints::report(const SaveReport& report) const {
  if (!report.outcome.committed) {
    log_.warning(report.outcome.sentence());
    return;
  }
  log_.info(report.outcome.sentence());
  for (const std::string& warning : report.warnings) log_.warning(warning);
  if (!leads_ || config_.checkpoint.on_commit.empty()) return;
  const std::string command = replaced(config_.checkpoint.on_commit, "{dir}", report.outcome.folder.string());
  const int code = run_command(command);
  if (code != 0) log_.warning("checkpoint.on_commit failed with exit code {}: {}", code, command);
}

}  // namespace titan
