#include "titan/train/state_dict.h"

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <tuple>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/config/dump.h"
#include "titan/job/data_order.h"
#include "titan/job/job.h"
#include "titan/stream/batch_stream.h"
#include "titan/stream/chunk_stream.h"
#include "titan/train/run.h"

namespace titan {
namespace {

// Members of a manifest's facts: checkpoints of earlier runs have these names.
constexpr const char* kConfig = "config";
constexpr const char* kGlobalBatch = "global_batch";

/// Whether parameter groups give other rates: pattern, lr_multiplier and, with Muon, update of each.
bool changes_rates(const nlohmann::ordered_json& before, const OptimizerSection& optimizer) {
  using Rates = std::vector<std::tuple<std::string, double, std::string>>;
  const bool is_muon = optimizer.name == OptimizerKind::muon;
  Rates now, then;
  for (const ParamGroup& group : optimizer.param_groups) {
    now.emplace_back(group.match, group.lr_multiplier, is_muon ? std::string(word_of(group.update)) : "");
  }
  const nlohmann::ordered_json section = before.value("optimizer", nlohmann::ordered_json::object());
  for (const nlohmann::ordered_json& group : section.value("param_groups", nlohmann::ordered_json::array())) {
    then.emplace_back(group.value("match", ""), group.value("lr_multiplier", 1.0),
                      is_muon ? group.value("update", "") : "");
  }
  return now != then;
}

/// Whether a changed option changes the length, rate or schedule. `before`: the earlier config. What a step does with a
/// gradient otherwise (betas, momentum, decay, Newton–Schulz iterations, dtypes) may be changed on purpose, and is
/// listed.
bool changes_training(const std::string& key, const nlohmann::ordered_json& before, const JobConfig& config) {
  if (key == "training.steps" || key == "lr_scheduler.total_steps") {  // together they set the length
    const auto number = [&](const char* pointer) {
      return before.value(nlohmann::ordered_json::json_pointer(pointer), nlohmann::ordered_json());
    };
    const nlohmann::ordered_json total = number("/lr_scheduler/total_steps");
    const int64_t now = config.lr_scheduler.total_steps.value_or(config.training.steps);
    return config.lr_scheduler.decay_ratio != 0 && (total.is_null() ? number("/training/steps") : total) != now;
  }
  if (key == "optimizer.param_groups") return changes_rates(before, config.optimizer);
  // The size of a matrix's update for a rate depends on adjust_lr_fn.
  const bool is_rate_of_muon = key == "optimizer.muon.lr" || key == "optimizer.muon.adjust_lr_fn";
  if (is_rate_of_muon) return config.optimizer.name == OptimizerKind::muon;
  return key.starts_with("lr_scheduler.") || key == "job.generation" || key == "training.seq_len" ||
         key == "optimizer.lr" || key == "optimizer.name";
}

/// The config as recorded in a checkpoint: with an absolute tokenizer path, valid from any working directory.
JobConfig recorded_config(JobConfig config) {
  ModelSection& model = config.model;
  std::string& tokenizer = model.tokenizer_path ? *model.tokenizer_path : model.hf_assets_path;
  std::error_code unknown;
  if (std::filesystem::exists(tokenizer, unknown)) {
    tokenizer = std::filesystem::absolute(tokenizer, unknown).lexically_normal().string();
  }
  return config;
}

/// JSON has no NaN, so null represents it.
std::vector<double> numbers(const nlohmann::json& list) {
  std::vector<double> values;
  for (const nlohmann::json& value : list) {
    values.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return values;
}

}  // namespace

void take_recorded_tokenizer(const nlohmann::ordered_json& facts, JobConfig& config) {
  try {
    if (facts.contains(kTokenizerFact)) config.model.tokenizer_path = facts.at(kTokenizerFact).get<std::string>();
    const nlohmann::ordered_json& recorded = facts.at(kConfig).at("model");
    const nlohmann::ordered_json& path = recorded.at("tokenizer_path");
    const auto assets = recorded.at("hf_assets_path").get<std::string>();
    config.model.tokenizer_path = path.is_null() ? std::nullopt : std::optional(path.get<std::string>());
    config.model.hf_assets_path = assets;
    const nlohmann::ordered_json& data = facts.at(kConfig).at("data");
    ChatSection chat;
    for (const auto& [name, text] : {std::pair{"begin", &chat.begin},
                                     {"system_prefix", &chat.system_prefix},
                                     {"system_suffix", &chat.system_suffix},
                                     {"user_prefix", &chat.user_prefix},
                                     {"user_suffix", &chat.user_suffix},
                                     {"assistant_prefix", &chat.assistant_prefix},
                                     {"assistant_suffix", &chat.assistant_suffix}}) {
      *text = data.at("chat").at(name).get<std::string>();
    }
    config.data.chat = std::move(chat);
    config.data.chat_template = data.at("chat_template").get<std::string>();
  } catch (const nlohmann::json::exception&) {  // weights not saved by a run, or not trained on conversations
  }
}

// Infinities also become null; the guard treats both as "no value to compare with".
nlohmann::json to_json(const SpikeGuardState& state) {
  return {{"steps", state.steps}, {"losses", state.losses}, {"norms", state.norms}};
}

std::optional<SpikeGuardState> guard_state_from_json(const nlohmann::json& words) {
  try {
    return SpikeGuardState{words.at("steps").get<int64_t>(), numbers(words.at("losses")), numbers(words.at("norms"))};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

namespace {

template <class Counters, class Visit>
void visit_counters(Counters& counters, const Visit& visit) {
  visit("skipped_steps", counters.skipped_steps);
  visit("bad_records", counters.data.bad_records), visit("invalid_utf8", counters.data.invalid_utf8);
  visit("loops", counters.data.re_loops), visit("long_conversations", counters.data.long_conversations);
}

}  // namespace

nlohmann::json to_json(const TotalCounters& counters) {
  nlohmann::json json;
  visit_counters(counters, [&](const char* name, int64_t count) { json[name] = count; });
  return json;
}

TotalCounters total_counters_from_json(const nlohmann::json& json) {
  TotalCounters counters;
  visit_counters(counters, [&](const char* name, int64_t& count) {
    if (!json.is_object() || !json.contains(name) || !json.at(name).is_number_integer()) return;
    count = std::max<int64_t>(0, json.at(name).get<int64_t>());
  });
  return counters;
}

StateDict::StateDict(const Run& run) : run_(run) {
  const Run::Model& model = run.model;
  for (ParameterPlace& place : place_parameters(model.description, model.plan().request)) {
    boxes_[place.spec.name] = boxes_of(place.layout, run.place.mesh, std::move(place.stages));
    updates_[place.spec.name] = &model.plan().request.updates[place.update];
  }
  for (size_t i = 0; i < model.assembly.parameters.size(); ++i) {
    optimizer_index_[model.assembly.parameters[i]->name()] = i;
  }
}

std::vector<SavedParameter> StateDict::parameters() const {
  const Optimizer* optimizer = run_.model.optimizer.get();
  const PlanRequest& request = run_.model.plan().request;
  std::vector<SavedParameter> saved;
  for (const Parameter* parameter : run_.model.parameters) {
    SavedParameter one{parameter->name(), parameter->spec().shape, boxes_.at(parameter->name()), parameter->master, {}};
    one.trained = parameter->trainable();
    const auto mine = optimizer_index_.find(parameter->name());
    const UpdateDescription& update = *updates_.at(parameter->name());
    one.optimizer = update.optimizer;
    one.counts_steps = update.counts_steps;
    one.master_type = scalar_type(request.training.dtype);
    one.moment_type = scalar_type(update.moment_type.value_or(request.optimizer.state_dtype));
    if (one.trained) {
      for (const std::string& name : update.moments) one.moments.emplace_back(name, at::Tensor());
    }
    if (optimizer && mine != optimizer_index_.end()) {
      const std::vector<at::Tensor> moments = optimizer->moments(mine->second);
      TITAN_CHECK((!one.trained || moments.size() == one.moments.size()) && "the plan names every moment", one.name,
                  moments.size(), one.moments.size());
      for (size_t m = 0; m < one.moments.size(); ++m) one.moments[m].second = moments[m];
      one.steps = optimizer->applied_steps(mine->second);
    }
    saved.push_back(std::move(one));
  }
  for (const ParameterGroup& group : run_.model.parameter_groups) {
    for (const size_t index : group.members) {
      saved[index].lr_multiplier = group.lr_multiplier;
      saved[index].weight_decay_multiplier = group.weight_decay_multiplier;
    }
  }
  return saved;
}

nlohmann::ordered_json StateDict::facts(const RunPosition& now) const {
  nlohmann::ordered_json layout;
  for (const MeshAxis axis : kMeshAxes) layout[std::string(name(axis))] = run_.place.mesh.size(axis);
  return {{"tokens", now.tokens},
          {"layout", std::move(layout)},
          {kGlobalBatch, make_batch_plan(run_.config, run_.place).global_batch()},
          {kConfig, parse_json<nlohmann::ordered_json>(dump_json(Schema(), recorded_config(run_.config)))},
          {kModelFacts, model_facts(make_model_request(run_.config, run_.model.description.vocabulary))}};
}

ConfigChanges find_config_changes(const nlohmann::ordered_json& facts, int64_t step, const JobConfig& config,
                                  const MeshPlace& place) {
  ConfigChanges found;
  std::vector<std::string> all, changing;
  if (facts.is_object() && facts.contains(kConfig)) {
    for (const ChangedOption& change : changes_since(Schema(), facts.at(kConfig), recorded_config(config))) {
      all.push_back(change.words);
      if (changes_training(change.key, facts.at(kConfig), config)) changing.push_back(change.words);
    }
  }
  const int64_t batch = make_batch_plan(config, place).global_batch();
  if (facts.is_object() && facts.contains(kGlobalBatch) && facts.at(kGlobalBatch) != batch) {
    changing.push_back(fmt::format("a global batch of {} sequences (was {})", batch, facts.at(kGlobalBatch).dump()));
  }
  if (!all.empty()) found.line = "options that differ from the checkpoint's: " + join(all, ", ");
  if (!changing.empty()) {
    found.warnings.push_back("training does not continue as it was: " + join(changing, ", "));
  }
  if (const int64_t steps = config.training.steps; step > 0 && steps <= step) {
    found.warnings.push_back(
        fmt::format("training.steps = {}, and the checkpoint holds step {}: no step is left to train", steps, step));
  }
  return found;
}

nlohmann::json data_position(const RunPosition& now) {
  if (now.rank_data.empty()) return to_json(now.data.value_or(StreamState()));
  nlohmann::json json{{"split", "upstream"}, {"ranks", nlohmann::json::array()}};
  for (const StreamState& state : now.rank_data) json["ranks"].push_back(to_json(state));
  return json;
}

StreamState data_position_from_json(const nlohmann::json& json, bool split, int64_t ranks, int64_t rank) {
  const bool was_split = json.is_object() && json.contains("ranks");
  const auto refuse = [](const std::string& was, const std::string& is) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("the checkpoint's data were read {}, and this run reads them {}; resume as it was saved, or "
                    "restart the data with checkpoint.exclude_from_loading = [\"dataloader\"]",
                    was, is));
  };
  const auto by_ranks = [](int64_t number) {
    return fmt::format("by {} data-parallel ranks, each its own part (data.split = \"upstream\")", number);
  };
  const int64_t saved = was_split && json.at("ranks").is_array() ? std::ssize(json.at("ranks")) : 0;
  if (was_split != split) {
    if (!split) refuse(by_ranks(saved), "as one sequence");
    refuse("as one sequence", by_ranks(ranks));
  }
  if (!split) return stream_state_from_json(json);
  if (saved != ranks) refuse(by_ranks(saved), fmt::format("by {}", ranks));
  return stream_state_from_json(json.at("ranks").at(static_cast<size_t>(rank)));
}

CheckpointState StateDict::whole(const RunPosition& now) const {
  SavedProgress progress{now.step, now.tokens, data_position(now), run_.place.mesh.data_parallel_degree()};
  progress.counters = to_json(now.counters);
  note_stream_options(progress.data_position, run_.config);
  if (run_.model.guard) progress.guard = to_json(run_.model.guard->state());
  const double lr = run_.model.schedule.rate(std::max<int64_t>(1, now.step));
  CheckpointState state = describe_run(parameters(), run_.config.optimizer, lr, progress);
  state.facts = facts(now);
  return state;
}

CheckpointState StateDict::model(const RunPosition& now, at::ScalarType type) const {
  CheckpointState state = describe_model(parameters());
  for (StateTensor& tensor : state.tensors) {
    tensor.tensor.type = type;
    if (tensor.local.defined()) tensor.local = tensor.local.to(type);
  }
  state.facts = facts(now);
  state.facts[kModelAlone] = true;
  return state;
}

namespace {

constexpr const char* kOptions = "options";

/// Integer weights: 0.7 and 0.3 become 7 and 3.
std::vector<int64_t> mixture_weights(const JobConfig& config) {
  std::vector<double> weights;
  for (const MixtureSource& source : config.data.mixture) weights.push_back(source.weight);
  return integer_weights(weights);
}

}  // namespace

nlohmann::json stream_options(const JobConfig& config) {
  nlohmann::json options{{"data.packing", config.data.packing}};
  if (config.training.dataset == "mixture") options["data.mixture weights"] = mixture_weights(config);
  options["data.order"] = config.data.order;
  if (reads_in_megatron_order(config)) {
    options["data.megatron_split"] = config.data.megatron_split;
    options["data.megatron_seed"] = config.data.megatron_seed;
  }
  options["data.shuffle"] = config.data.shuffle;
  if (config.data.shuffle) options["data.shuffle_seed"] = config.data.shuffle_seed;
  return options;
}

void note_stream_options(nlohmann::json& position, const JobConfig& config) {
  position[kOptions] = stream_options(config);
}

void check_stream_options(const nlohmann::json& position, const JobConfig& config) {
  const nlohmann::json before = position.is_object() ? position.value(kOptions, nlohmann::json()) : nlohmann::json();
  if (!before.is_object()) return;
  const nlohmann::json now = stream_options(config);
  std::vector<std::string> was, is;
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key) || before.at(key) == value) continue;
    was.push_back(fmt::format("{} = {}", key, before.at(key).dump()));
    is.push_back(value.dump());
  }
  if (was.empty()) return;
  throw Error(ExitCode::bad_config,
              fmt::format("the checkpoint's data were read with {}, and this run has {}: a position in one order of "
                          "batches is not valid in another; resume as it was saved, or restart the data with "
                          "checkpoint.exclude_from_loading = [\"dataloader\"]",
                          join(was, ", "), join(is, ", ")));
}

namespace {

/// The model's facts for other programs' files; empty for a family that no other program supports.
std::vector<ModelFact> facts_of(const ModelRequest& model) {
  const StateDictAdapter* adapter = find_state_dict_adapter(model.model.name);
  return adapter ? adapter->facts(model) : std::vector<ModelFact>();
}

/// The recorded options of a model: those of model.override, and of the section model what decides the weights.
std::vector<const Option*> recorded_options(const Schema& schema) {
  std::vector<const Option*> options;
  for (const char* key : {"model.name", "model.flavor", "model.norm_type", "model.rope_scaling", "model.max_seq_len"}) {
    options.push_back(schema.find(key));
  }
  for (const Option& option : schema.options()) {
    if (option.section == "model.override") options.push_back(&option);
  }
  return options;
}

constexpr const char* kSequenceLength = "seq_len";

/// The recorded facts of the model; null if there are none.
nlohmann::ordered_json saved_facts(const std::optional<Manifest>& manifest) {
  const bool is_there = manifest && manifest->facts.is_object() && manifest->facts.contains(kModelFacts);
  nlohmann::ordered_json facts = is_there ? manifest->facts.at(kModelFacts) : nlohmann::ordered_json();
  return facts.is_object() ? facts : nlohmann::ordered_json();
}

}  // namespace

nlohmann::ordered_json model_facts(const ModelRequest& model) {
  nlohmann::ordered_json facts{{"flavor", model.model.name + " " + model.model.flavor}};
  for (const ModelFact& fact : facts_of(model)) facts[fact.name] = fact.value;
  nlohmann::ordered_json& request = facts["request"];
  request[kSequenceLength] = model.sequence_length;
  const Schema schema;
  JobConfig config;
  config.model = model.model;
  for (const Option* option : recorded_options(schema)) request[option->name()] = to_json(option->read(config));
  return facts;
}

std::optional<ModelRequest> recorded_model(const std::optional<Manifest>& manifest) {
  const nlohmann::ordered_json facts = saved_facts(manifest);
  if (facts.is_null() || !facts.contains("request")) return std::nullopt;
  const nlohmann::ordered_json& request = facts.at("request");
  if (!request.is_object() || !request.contains("name")) return std::nullopt;
  const Schema schema;
  JobConfig config = default_config(schema);
  for (const Option* option : recorded_options(schema)) {  // older versions recorded fewer
    const auto found = request.find(option->name());
    if (found == request.end()) continue;
    const std::optional<Value> value = value_from_json(option->type, *found);
    if (!value) return std::nullopt;  // from a version with other options
    option->write(config, *value);
  }
  ModelRequest model{.model = config.model, .tokenizer_vocabulary = 1};
  if (const auto length = request.find(kSequenceLength); length != request.end()) {
    if (!length->is_number_integer()) return std::nullopt;
    model.sequence_length = length->get<int64_t>();
  }
  const Architecture* architecture = find_architecture(model.model.name);
  return architecture && architecture->has_flavor(model.model.name, model.model.flavor) ? std::optional(model)
                                                                                        : std::nullopt;
}

std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use) {
  const nlohmann::ordered_json saved = saved_facts(checkpoint.manifest());
  if (saved.is_null()) return join(find_architecture(model.model.name)->notes(model), "; ");
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
  return fmt::format("{}: {}; the weights are used anyway", file, join(changed, "; "));
}

}  // namespace titan
