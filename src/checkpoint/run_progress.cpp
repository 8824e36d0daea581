// The progress of a run: the keys `dataloader.*` and `train_state.*` of each release of torchtitan and of titan.

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "titan/base/json.h"
#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/training_state.h"
#include "titan/config/section.h"

namespace titan {
namespace {

constexpr const char* kStepKey = "train_state.step";
constexpr const char* kTokensKey = "train_state.ntokens_seen";
constexpr const char* kAllTokensKey = "train_state.titan_ntokens_seen";  // of all ranks; kTokensKey has one rank's
constexpr const char* kDataRanksKey = "dataloader.world_size";
constexpr const char* kFormerPosition = "titan_stream";  // in the pickled dictionary of a rank, until November 2026
constexpr std::array<const char*, 3> kLossLists{"train_state.global_avg_losses", "train_state.global_max_losses",
                                                "train_state.log_steps"};
constexpr int64_t kMostCount = 1'000'000'000'000'000;  // below 2^53: a double has every such count exactly

/// A list as torch.save writes it.
PickleRef empty_list_in_a_file() {
  PickleValue file = *pickle::call("_io BytesIO", {});
  file.items.push_back(
      pickle::tuple({pickle::bytes(value_blob(pickle::list({}))), pickle::integer(0), pickle::none()}));
  return std::make_shared<const PickleValue>(std::move(file));
}

bool is_empty_list_in_a_file(const PickleValue& file) {
  if (!file.is_object("_io BytesIO") || file.items.empty()) return false;
  const PickleValue& contents = *file.items.back();
  return contents.is(PickleValue::Kind::tuple) && !contents.items.empty() &&
         contents.items[0]->is(PickleValue::Kind::bytes) && contents.items[0]->text == value_blob(pickle::list({}));
}

/// A count saved as an integer; nothing if there is no such value.
std::optional<int64_t> read_value_count(OpenCheckpoint& checkpoint, const std::string& name) {
  if (!checkpoint.index().values.contains(name)) return std::nullopt;
  const PickleRef value = checkpoint.value(name);
  if (!value->is(PickleValue::Kind::integer)) throw MismatchError(fmt::format("its {} is not a whole number", name));
  return stored_count(name, static_cast<double>(value->integer));
}

/// A count saved as a tensor; nothing if there is no such tensor.
std::optional<int64_t> read_tensor_count(OpenCheckpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.index().tensors.find(name);
  if (found == checkpoint.index().tensors.end()) return std::nullopt;
  const at::ScalarType stored = found->second.tensor.type;
  if (!c10::isIntegralType(stored, /*includeBool=*/false)) {
    throw MismatchError(fmt::format("its {} is {} and not a whole number", name, python_name(stored)));
  }
  const at::Tensor number = at::zeros({}, at::kLong);
  const LoadTarget target{{name, at::kLong, {}}, {}, number, /*any_type=*/true};
  checkpoint.load({&target, 1});
  return stored_count(name, number.item<double>());
}

int64_t read_data_ranks(OpenCheckpoint& checkpoint) {
  const std::optional<int64_t> ranks = read_value_count(checkpoint, kDataRanksKey);
  if (ranks && (*ranks == 0 || *ranks > kMostRanks)) {
    throw DamageError(fmt::format("its {} is {}", kDataRanksKey, *ranks));
  }
  return ranks.value_or(std::max<int64_t>(1, loader_states(checkpoint.index())));
}

/// torchtitan saves one rank's tokens as an integer; earlier titan saved those of all ranks as a tensor.
std::optional<int64_t> read_tokens(OpenCheckpoint& checkpoint, int64_t data_ranks) {
  if (const auto all = read_value_count(checkpoint, kAllTokensKey)) return all;
  if (const auto all = read_tensor_count(checkpoint, kTokensKey)) return all;
  const std::optional<int64_t> one = read_value_count(checkpoint, kTokensKey);
  if (!one) return std::nullopt;
  if (*one > kMostCount / data_ranks) {
    throw DamageError(fmt::format("its {} is {}, on each of {} ranks", kTokensKey, *one, data_ranks));
  }
  return *one * data_ranks;
}

/// The dictionaries in `value`, at any depth, that have a token buffer.
void find_buffers(const PickleValue& value, std::vector<const PickleValue*>& found) {
  if (value.is(PickleValue::Kind::dictionary) && value.find("token_buffer")) {
    found.push_back(&value);
    return;
  }
  for (const PickleRef& item : value.items) find_buffers(*item, found);
}

}  // namespace

std::string loader_key(int64_t rank) { return fmt::format("dataloader.dp_rank_{}", rank); }

CheckpointState describe_progress(const SavedProgress& progress, TorchtitanRelease release) {
  const int64_t tokens = progress.tokens.value_or(0);
  CheckpointState state;
  const auto add = [&](std::string name, const PickleRef& value) {
    state.values.push_back({std::move(name), value_blob(value)});
  };
  const bool is_early = release == TorchtitanRelease::december_2024;
  const std::string beginning = write_pickle(pickle::dictionary({}));
  for (int64_t rank = 0; rank < progress.data_ranks; ++rank) add(loader_key(rank), pickle::bytes(beginning));
  if (!is_early) add(kDataRanksKey, pickle::integer(progress.data_ranks));
  if (!progress.data_position.is_null()) add(kPositionKey, pickle::text(progress.data_position.dump()));
  if (is_early) {
    state.tensors.push_back(
        {{kStepKey, at::kInt, {}}, whole_everywhere({}), at::scalar_tensor(progress.step, at::kInt)});
    for (const char* list : kLossLists) add(list, empty_list_in_a_file());
  } else {
    add(kStepKey, pickle::integer(progress.step));
    add(kTokensKey, pickle::integer(tokens / progress.data_ranks));
  }
  add(kAllTokensKey, pickle::integer(tokens));
  if (!progress.guard.is_null()) add(kGuardKey, pickle::text(progress.guard.dump()));
  if (!progress.counters.is_null()) add(kCountersKey, pickle::text(progress.counters.dump()));
  return state;
}

bool holds_run(const CheckpointIndex& index) {
  return index.tensors.contains(kStepKey) || index.values.contains(kStepKey);
}

int64_t stored_count(const std::string& name, double number) {
  const bool is_count = number >= 0 && number <= kMostCount && number == std::floor(number);
  if (!is_count) throw DamageError(fmt::format("its {} is {}", name, number));
  return static_cast<int64_t>(number);
}

int64_t loader_states(const CheckpointIndex& index) {
  int64_t ranks = 0;
  while (index.values.contains(loader_key(ranks))) ++ranks;
  return ranks;
}

SavedProgress read_progress(OpenCheckpoint& checkpoint) {
  const std::optional<int64_t> value = read_value_count(checkpoint, kStepKey);
  SavedProgress stored{.step = value ? *value : read_tensor_count(checkpoint, kStepKey).value()};
  stored.data_ranks = read_data_ranks(checkpoint);
  stored.tokens = read_tokens(checkpoint, stored.data_ranks);
  return stored;
}

PickleRef read_titan_position(OpenCheckpoint& checkpoint) {
  if (checkpoint.index().values.contains(kPositionKey)) return checkpoint.value(kPositionKey);
  if (!checkpoint.index().values.contains(loader_key(0))) return nullptr;
  const PickleRef pickled = checkpoint.value(loader_key(0));
  if (!pickled->is(PickleValue::Kind::bytes)) throw PickleError("it is not a pickle");
  const PickleRef loader = read_pickle(pickled->text);
  const PickleValue* ours = loader->find(kFormerPosition);
  return ours ? PickleRef(loader, ours) : nullptr;
}

bool holds_past_losses(OpenCheckpoint& checkpoint) {
  if (!checkpoint.index().values.contains(kLossLists[0])) return false;
  try {
    return !is_empty_list_in_a_file(*checkpoint.value(kLossLists[0]));
  } catch (const PickleError&) {
    return true;
  }
}

SamplePosition read_sample_position(const PickleValue& state) {
  if (state.is(PickleValue::Kind::dictionary) && state.items.empty()) {
    throw PickleError("its loader had read nothing");
  }
  std::vector<const PickleValue*> found;
  find_buffers(state, found);
  if (found.empty())
    throw PickleError("another program's samples are counted in it, and no token buffer of torchtitan's is there");
  if (found.size() > 1)
    throw PickleError(fmt::format("{} worker processes read the data, each its own part", found.size()));
  const PickleValue* samples = found[0]->find("sample_idx");
  if (!samples || !samples->is(PickleValue::Kind::integer) || samples->integer < 0) {
    throw PickleError(found[0]->find("data") ? "it is the place of a stream of the datasets package"
                                             : "it does not say how many documents were read");
  }
  SamplePosition position;
  position.samples = samples->integer;
  const PickleValue* buffer = found[0]->find("token_buffer");
  if (!buffer->is(PickleValue::Kind::list)) throw PickleError("its token buffer is not a list");
  for (const PickleRef& token : buffer->items) {
    const bool fits =
        token->is(PickleValue::Kind::integer) && token->integer >= 0 && token->integer < (int64_t{1} << 31);
    if (!fits) throw PickleError("its token buffer holds something that is not a token");
    position.left_tokens.push_back(static_cast<int32_t>(token->integer));
  }
  return position;
}

// Converts a checkpoint of any program and release for one of torchtitan's releases.

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

/// Throws MismatchError for what no model and no optimizer of that release has: its strict load would fail.
void expect_loadable(const OpenCheckpoint& checkpoint, const std::set<std::string>& model, TorchtitanRelease release) {
  constexpr std::string_view kState = "optimizer.state.", kMomentum = ".momentum_buffer";
  const bool is_early = release == TorchtitanRelease::december_2024;
  const char* const program = is_early ? "torchtitan of December 2024" : "torchtitan's last TOML release";
  for (const std::string& name : model) {
    const bool is_foreign = name.ends_with(".bias") || (is_early && name.find(".attention.") != std::string::npos &&
                                                        name.ends_with("_norm.weight"));
    if (is_foreign) {
      throw MismatchError(fmt::format(
          "its model has {}, and no such model of {} has it; convert to-hf exports the weights", name, program));
    }
  }
  std::vector<std::string> matrices;
  for (const auto& [key, stored] : checkpoint.index().tensors) {
    if (!key.starts_with(kState) || !key.ends_with(kMomentum)) continue;
    matrices.push_back(key.substr(kState.size(), key.size() - kState.size() - kMomentum.size()));
  }
  if (matrices.empty()) return;
  throw MismatchError(
      fmt::format("Muon stepped {} of its matrices, such as {}, and {} has no Muon: its strict load wants AdamW's "
                  "moments; convert to-hf exports the weights alone",
                  matrices.size(), matrices.front(), program));
}

using Values = std::map<std::string, std::string>;  // serialised

/// Adds keys that other PyTorch releases need: loading is strict.
void add_missing_settings(Values& values, const TorchtitanForm& form) {
  constexpr std::string_view kGroups = "optimizer.param_groups.", kRate = ".lr";
  const std::string no = value_blob(pickle::boolean(false));
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
    values.emplace(group + ".decoupled_weight_decay", value_blob(pickle::boolean(form.decoupled_decay)));
  }
}

/// The optimizer's settings and the schedule. Pipelines saved several equal schedules until 2025; the first one is
/// used.
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
    values[name] = value_blob(checkpoint.value(key));
  }
  if (holds_run(checkpoint.index())) add_missing_settings(values, form);
  return values;
}

/// A JSON value that titan wrote; null if it is missing or damaged.
nlohmann::json words_of(const PickleRef& text) {
  if (!text || !text->is(PickleValue::Kind::text)) return nullptr;
  const nlohmann::json words = parse_json(text->text, /*allow_exceptions=*/false);
  return words.is_discarded() ? nlohmann::json(nullptr) : words;
}

nlohmann::json our_position(OpenCheckpoint& checkpoint) {
  try {
    return words_of(read_titan_position(checkpoint));
  } catch (const PickleError&) {
    return nullptr;  // another program wrote it, and progress_of passes it on
  }
}

/// torchtitan's loader states are kept if the number of data-parallel ranks is the same.
CheckpointState progress_of(OpenCheckpoint& checkpoint, SavedProgress progress, const TorchtitanForm& form) {
  if (form.data_ranks != 0) progress.data_ranks = form.data_ranks;
  progress.data_position = our_position(checkpoint);
  const CheckpointIndex& index = checkpoint.index();
  if (index.values.contains(kGuardKey)) progress.guard = words_of(checkpoint.value(kGuardKey));
  if (index.values.contains(kCountersKey)) progress.counters = words_of(checkpoint.value(kCountersKey));
  CheckpointState state = describe_progress(progress, form.release);
  if (!progress.data_position.is_null() || progress.data_ranks != loader_states(index)) return state;
  for (SavedValue& value : state.values) {
    if (value.name.starts_with("dataloader.dp_rank_")) value.blob = value_blob(checkpoint.value(value.name));
  }
  return state;
}

}  // namespace

void write_for_torchtitan(Storage& storage, OpenCheckpoint& checkpoint, const TorchtitanForm& form,
                          const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder) {
  std::set<std::string> model;
  const CheckpointSource weights(checkpoint);
  for (const auto& [name, tensor] : weights.tensors()) model.insert(name);
  expect_loadable(checkpoint, model, form.release);
  const char* const prefix = form.release == TorchtitanRelease::december_2024 ? "model." : "";
  std::map<std::string, Renamed> all = renamed(checkpoint, model, prefix, tables);
  Values values = settings_of(checkpoint, form);
  StreamedState state;
  if (holds_run(checkpoint.index())) {
    const SavedProgress stored = read_progress(checkpoint);
    state.step = stored.step;
    CheckpointState progress = progress_of(checkpoint, stored, form);
    for (const StateTensor& number : progress.tensors) all[number.tensor.name] = {number.tensor, number.local};
    for (SavedValue& value : progress.values) values[value.name] = std::move(value.blob);
  }
  for (const auto& [name, blob] : values) state.values.push_back({name, blob});
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
