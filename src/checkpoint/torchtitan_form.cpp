// A checkpoint of any program and release as one of torchtitan's releases demands it (torchtitan.md section 5.1).
#include <ATen/ops/empty.h>

#include <set>

#include "elements.h"
#include "titan/base/json.h"
#include "titan/checkpoint/import.h"
#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

struct Renamed {
  LogicalTensor tensor;  // as stored
  at::Tensor table;      // instead of a stored one
};

/// The model's tensors and the optimizer's under their new names, and the tables.
std::map<std::string, Renamed> renamed(const OpenCheckpoint& checkpoint, const std::set<std::string>& model,
                                       const std::string& prefix, const std::map<std::string, at::Tensor>& tables) {
  constexpr std::string_view kPrefix = "model.", kOptimizer = "optimizer.";
  std::map<std::string, Renamed> all;
  for (const auto& [key, stored] : checkpoint.index().tensors) {
    const std::string bare = key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
    if (model.contains(bare)) {
      all[prefix + bare] = {stored.tensor, {}};
    } else if (key.starts_with(kOptimizer)) {
      all[key] = {stored.tensor, {}};
    }
  }
  for (const auto& [name, table] : tables) {
    all[prefix + name] = {{name, table.scalar_type(), table.sizes().vec()}, table.contiguous()};
  }
  return all;
}

using Values = std::map<std::string, PickleRef>;

/// What other releases of PyTorch keep than the one that saved: loading is strict.
void add_missing_settings(Values& values, const TorchtitanForm& form) {
  constexpr std::string_view kGroups = "optimizer.param_groups.", kRate = ".lr";
  const PickleRef no = pickle::boolean(false);
  if (form.release == TorchtitanRelease::december_2024) {
    values.emplace("lr_scheduler.verbose", no);
    return;
  }
  for (const char* flag : {"_is_initial", "_get_lr_called_within_step"}) {
    values.emplace(fmt::format("lr_scheduler.{}", flag), no);
  }
  const Values stored = values;
  for (const auto& [key, value] : stored) {
    if (!key.starts_with(kGroups) || !key.ends_with(kRate)) continue;
    const std::string group = key.substr(0, key.size() - kRate.size());
    values.emplace(group + ".decoupled_weight_decay", pickle::boolean(form.decoupled_decay));
  }
}

/// The optimizer's settings and the schedule. Of several schedules, which pipelines saved until 2025, the first one:
/// all are the same.
Values settings_of(OpenCheckpoint& checkpoint, const TorchtitanForm& form) {
  constexpr std::string_view kFirst = "lr_scheduler_0.", kSchedule = "lr_scheduler.", kSchedules = "lr_scheduler_";
  Values values;
  for (const auto& [key, place] : checkpoint.index().values) {
    if (key.starts_with("dataloader.") || key.starts_with("train_state.")) continue;
    std::string name = key;
    if (form.release == TorchtitanRelease::february_2026 && key.starts_with(kSchedules)) {
      if (!key.starts_with(kFirst)) continue;
      name = std::string(kSchedule) + key.substr(kFirst.size());
    }
    values[name] = checkpoint.value(key);
  }
  if (holds_run(checkpoint.index())) add_missing_settings(values, form);
  return values;
}

/// A text of ours that holds JSON; null when it is not there or damaged.
nlohmann::json words_of(const PickleRef& text) {
  if (!text || !text->is(PickleValue::Kind::text)) return nullptr;
  const nlohmann::json words = parse_json(text->text, /*allow_exceptions=*/false);
  return words.is_discarded() ? nlohmann::json(nullptr) : words;
}

nlohmann::json our_position(OpenCheckpoint& checkpoint) {
  try {
    return words_of(read_titan_position(checkpoint));
  } catch (const PickleError&) {
    return nullptr;  // another program's: it stays as it is
  }
}

/// Loader states of torchtitan's are kept where the number of ranks is.
CheckpointState progress_of(OpenCheckpoint& checkpoint, const StoredProgress& stored, const TorchtitanForm& form) {
  RunProgress progress{.step = stored.step, .tokens = stored.tokens.value_or(0)};
  progress.data_ranks = form.data_ranks == 0 ? stored.data_ranks : form.data_ranks;
  progress.data_position = our_position(checkpoint);
  const CheckpointIndex& index = checkpoint.index();
  if (index.values.contains(kGuardKey)) progress.guard = words_of(checkpoint.value(kGuardKey));
  CheckpointState state = describe_progress(progress, form.release);
  if (!progress.data_position.is_null() || progress.data_ranks != loader_states(index)) return state;
  for (StateValue& value : state.values) {
    if (value.name.starts_with("dataloader.dp_rank_")) value.value = checkpoint.value(value.name);
  }
  return state;
}

}  // namespace

void write_for_torchtitan(Storage& storage, OpenCheckpoint& checkpoint, const TorchtitanForm& form,
                          const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder) {
  std::set<std::string> model;
  const CheckpointSource weights(checkpoint);
  for (const auto& [name, tensor] : weights.tensors()) model.insert(name);
  const char* const prefix = form.release == TorchtitanRelease::december_2024 ? "model." : "";
  std::map<std::string, Renamed> all = renamed(checkpoint, model, prefix, tables);
  Values values = settings_of(checkpoint, form);
  StreamedState state;
  if (holds_run(checkpoint.index())) {
    const StoredProgress stored = read_progress(checkpoint);
    state.step = stored.step;
    CheckpointState progress = progress_of(checkpoint, stored, form);
    for (const StateTensor& number : progress.tensors) {
      all[number.placed.tensor.name] = {number.placed.tensor, number.local};
    }
    for (StateValue& value : progress.values) values[value.name] = std::move(value.value);
  }
  for (const auto& [name, value] : values) state.values.push_back({name, value_blob(value)});
  std::vector<const Renamed*> sources;
  for (const auto& [name, source] : all) {
    state.tensors.push_back({name, source.tensor.type, source.tensor.shape});
    sources.push_back(&source);
  }
  state.read = [&](size_t index, const Box& box) {
    const Renamed& source = *sources[index];
    if (source.table.defined()) return narrowed(source.table, box).contiguous();
    at::Tensor tensor = at::empty(box.extent, source.tensor.type);
    const LoadTarget target{source.tensor, box, tensor};
    checkpoint.load({&target, 1});
    return tensor;
  };
  if (checkpoint.manifest()) {
    state.step = checkpoint.manifest()->step;
    state.facts = checkpoint.manifest()->facts;
  }
  write_streamed(storage, state, folder);
}

}  // namespace titan
