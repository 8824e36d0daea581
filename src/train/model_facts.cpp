#include "titan/train/model_facts.h"

#include <algorithm>
#include <vector>

#include "titan/base/text.h"

namespace titan {
namespace {

/// None for a family that no other program knows.
std::vector<ModelFact> facts_of(const ModelRequest& model) {
  const ModelExchange* exchange = find_model_exchange(model.name);
  return exchange ? exchange->facts(model) : std::vector<ModelFact>();
}

/// Every member of a request but the tokenizer's size: of any other the same names mean the same.
template <class Request, class Visit>
void visit_request(Request& model, const Visit& visit) {
  visit("name", model.name), visit("flavor", model.flavor);
  visit("norm_type", model.norm_type), visit("rope_scaling", model.rope_scaling);
  visit("seq_len", model.sequence_length), visit("max_seq_len", model.max_sequence);
  visit("dim", model.sizes.dim), visit("n_layers", model.sizes.n_layers), visit("n_heads", model.sizes.n_heads);
  visit("n_kv_heads", model.sizes.n_kv_heads), visit("multiple_of", model.sizes.multiple_of);
  visit("vocab_size", model.sizes.vocab_size);
}

/// The facts of the model; null where there are none.
nlohmann::ordered_json saved_facts(const std::optional<Manifest>& manifest) {
  const bool is_there = manifest && manifest->facts.is_object() && manifest->facts.contains(kModelFacts);
  nlohmann::ordered_json facts = is_there ? manifest->facts.at(kModelFacts) : nlohmann::ordered_json();
  return facts.is_object() ? facts : nlohmann::ordered_json();
}

}  // namespace

nlohmann::ordered_json model_facts(const ModelRequest& model) {
  nlohmann::ordered_json facts{{"flavor", model.name + " " + model.flavor}};
  for (const ModelFact& fact : facts_of(model)) facts[fact.name] = fact.value;
  visit_request(model, [&](const char* name, const auto& value) { facts["request"][name] = value; });
  return facts;
}

std::optional<ModelRequest> recorded_model(const std::optional<Manifest>& manifest) {
  const nlohmann::ordered_json facts = saved_facts(manifest);
  if (facts.is_null() || !facts.contains("request")) return std::nullopt;
  ModelRequest model;
  model.tokenizer_vocabulary = 1;
  try {
    visit_request(model, [&](const char* name, auto& value) { facts.at("request").at(name).get_to(value); });
  } catch (const nlohmann::json::exception&) {  // of a program with another table of models
    return std::nullopt;
  }
  const ModelFamily* family = find_model_family(model.name);
  if (!family) return std::nullopt;
  const std::vector<std::string> flavors = family->flavors(model.name);
  return std::find(flavors.begin(), flavors.end(), model.flavor) == flavors.end() ? std::nullopt : std::optional(model);
}

std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use) {
  const nlohmann::ordered_json saved = saved_facts(checkpoint.manifest());
  if (saved.is_null()) return join(find_model_family(model.name)->notes(model), "; ");
  std::vector<std::string> another, changed;
  bool may_begin = use == WeightUse::resume;
  for (const ModelFact& fact : facts_of(model)) {
    const auto there = saved.find(fact.name);
    if (there == saved.end() || !there->is_string() || there->get<std::string>() == fact.value) continue;
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
