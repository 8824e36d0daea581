// A run's checkpoint under the names of torchtitan of December 2024 (torchtitan.md section 5.1).
#include <ATen/ops/empty.h>

#include <set>

#include "elements.h"
#include "titan/checkpoint/import.h"
#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

/// What did not exist then.
const std::set<std::string> kLater{"train_state.ntokens_seen", "dataloader.world_size", kGuardKey};

struct Renamed {
  LogicalTensor tensor;  // as stored
  at::Tensor table;      // instead of a stored one
};

/// The stored tensors under their new names, and the tables, by name.
std::map<std::string, Renamed> renamed(const OpenCheckpoint& checkpoint, const std::set<std::string>& model,
                                       const std::map<std::string, at::Tensor>& tables) {
  constexpr std::string_view kPrefix = "model.";
  std::map<std::string, Renamed> all;
  for (const auto& [key, stored] : checkpoint.index().tensors) {
    const std::string bare = key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
    if (model.contains(bare)) {
      all[std::string(kPrefix) + bare] = {stored.tensor, {}};
    } else if (holds_other_state(key) && !kLater.contains(key)) {
      all[key] = {stored.tensor, {}};
    }
  }
  for (const auto& [name, table] : tables) {
    all[std::string(kPrefix) + name] = {{name, table.scalar_type(), table.sizes().vec()}, table.contiguous()};
  }
  return all;
}

std::vector<SavedValue> values_of(OpenCheckpoint& checkpoint) {
  const CheckpointIndex& index = checkpoint.index();
  std::vector<SavedValue> values;
  for (const auto& [name, place] : index.values) {
    if (!kLater.contains(name)) values.push_back({name, value_blob(checkpoint.value(name))});
  }
  for (const StateValue& list : empty_loss_lists()) {
    if (holds_run(index) && !index.values.contains(list.name)) values.push_back({list.name, value_blob(list.value)});
  }
  return values;
}

}  // namespace

void write_in_names_of_2024(Storage& storage, OpenCheckpoint& checkpoint,
                            const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder) {
  std::set<std::string> model;
  const CheckpointSource weights(checkpoint);
  for (const auto& [name, tensor] : weights.tensors()) model.insert(name);
  const std::map<std::string, Renamed> all = renamed(checkpoint, model, tables);
  StreamedState state;
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
  state.values = values_of(checkpoint);
  if (checkpoint.manifest()) {
    state.step = checkpoint.manifest()->step;
    state.facts = checkpoint.manifest()->facts;
  }
  write_streamed(storage, state, folder);
}

}  // namespace titan
