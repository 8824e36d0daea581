#include "titan/train/model_facts.h"

#include <vector>

#include "titan/base/text.h"

namespace titan {
namespace {

/// None for a family that no other program knows.
std::vector<ModelFact> facts_of(const ModelRequest& model) {
  const ModelExchange* exchange = find_model_exchange(model.name);
  return exchange ? exchange->facts(model) : std::vector<ModelFact>();
}

}  // namespace

nlohmann::ordered_json model_facts(const ModelRequest& model) {
  nlohmann::ordered_json facts{{"flavor", model.name + " " + model.flavor}};
  for (const ModelFact& fact : facts_of(model)) facts[fact.name] = fact.value;
  return facts;
}

std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use) {
  if (!checkpoint.manifest() || !checkpoint.manifest()->facts.is_object()) return {};
  const nlohmann::ordered_json& facts = checkpoint.manifest()->facts;
  const auto saved = facts.find(kModelFacts);
  if (saved == facts.end() || !saved->is_object()) return {};
  std::vector<std::string> another, changed;
  bool may_begin = use == WeightUse::resume;
  for (const ModelFact& fact : facts_of(model)) {
    const auto there = saved->find(fact.name);
    if (there == saved->end() || !there->is_string() || there->get<std::string>() == fact.value) continue;
    const bool is_meant = fact.changed_on_purpose && use == WeightUse::begin;
    may_begin = may_begin && fact.changed_on_purpose;
    (is_meant ? changed : another)
        .push_back(fmt::format("{} is {}, this model's is {} ({})", fact.name, there->get<std::string>(), fact.value,
                               fact.option));
  }
  const std::string file = (checkpoint.folder() / kManifestFile).string();
  if (!another.empty()) {
    throw MismatchError(fmt::format("its weights are another model's, says {}: {}; set this as it was{}", file,
                                    join(another, "; "),
                                    may_begin ? ", or begin from the weights with checkpoint.initial_load_path in "
                                                "another job.dump_folder"
                                              : ""));
  }
  if (changed.empty()) return {};
  return fmt::format("{}: {}; the weights are taken all the same", file, join(changed, "; "));
}

}  // namespace titan
