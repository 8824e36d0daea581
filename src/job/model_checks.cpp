#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/job/parameter_groups.h"
#include "titan/job/pipeline_job.h"
#include "titan/job/updates.h"

namespace titan {
namespace {

/// Assigns a model's error to its option: a length, or one of the sizes that override the flavor's.
Problem model_problem(const JobConfig& config, const Origins& origins, std::string what) {
  const std::string training = "training.seq_len";
  if (const size_t at = what.find(training); at != std::string::npos) {
    if (!config.validation.enable || config.validation.seq_len <= config.training.seq_len) {
      return origins.problem(training, std::move(what), "");
    }
    return origins.problem("validation.seq_len", what.replace(at, training.size(), "validation.seq_len"), "");
  }
  for (const char* size :
       {"n_kv_heads", "n_heads", "head_dim", "hidden_dim", "dim", "n_layers", "multiple_of", "vocab_size"}) {
    const std::string key = std::string("model.override.") + size;
    if (origins.is_set(key)) return origins.problem(key, std::move(what), "change the sizes in model.override");
  }
  if (what.find("model.rope_scaling") != std::string::npos || what.find("rope_high") != std::string::npos) {
    return origins.problem("model.rope_scaling", std::move(what), "");
  }
  return origins.problem("model.flavor", std::move(what), "choose another flavor");
}

/// Checks that training.keep_fp32 names units of the model.
std::vector<Problem> check_kept_units(const ModelDescription& model, const JobConfig& config, const Origins& origins) {
  std::vector<std::string> units;
  for (const UnitDescription& unit : model.units) units.push_back(unit.name);
  std::vector<Problem> problems;
  for (const std::string& name : config.training.keep_fp32) {
    if (std::find(units.begin(), units.end(), name) != units.end()) continue;
    const std::vector<std::string> best = nearest(name, units, 1);
    problems.push_back(origins.problem(
        "training.keep_fp32",
        fmt::format("training.keep_fp32: {} {} has no unit \"{}\"", config.model.name, config.model.flavor, name),
        (best.empty() ? std::string() : fmt::format("did you mean \"{}\"? ", best[0])) +
            fmt::format("there are: {}, layers.0 to layers.{}, {}", units.front(), model.layers - 1, units.back())));
  }
  return problems;
}

/// Checks that quantize.linear.float8.filter_fqns names layers of the model.
std::vector<Problem> check_float8_filters(const ModelDescription& model, const JobConfig& config,
                                          const Origins& origins) {
  const std::optional<LinearFloat8Section> section = float8_options(config);
  if (!section) return {};
  const std::string key = "quantize.linear.float8.filter_fqns";
  std::vector<std::string> layers;
  for (const LinearChoice& choice : choose_float8_layers(model, *section, 1, {})) {
    const std::string prefix = "layers.0.";
    if (choice.layer.starts_with(prefix)) layers.push_back(choice.layer.substr(prefix.size()));
    if (!choice.layer.starts_with("layers.")) layers.push_back(choice.layer);
  }
  std::vector<Problem> problems;
  for (const std::string& filter : idle_filters(model, name_filters(*section))) {
    std::vector<std::string> words = layers;
    words.emplace_back(kSmallLayersFilter);
    const std::vector<std::string> best = nearest(filter, words, 1);
    problems.push_back(origins.problem(key,
                                       fmt::format("{}: no linear layer of {} {} has \"{}\" in its name", key,
                                                   config.model.name, config.model.flavor, filter),
                                       (best.empty() ? std::string() : fmt::format("did you mean \"{}\"? ", best[0])) +
                                           fmt::format("the names are: layers.N. with {}", join(layers, ", "))));
  }
  return problems;
}

/// A problem if the model has no flavor of that name.
std::optional<Problem> check_flavor(const Architecture& architecture, const JobConfig& config, const Origins& origins) {
  const ModelSection& asked = config.model;
  if (architecture.has_flavor(asked.name, asked.flavor)) return {};
  std::vector<std::string> flavors = architecture.flavors(asked.name);
  const std::vector<std::string> best = nearest(asked.flavor, flavors, 1);
  flavors.emplace_back(kCustomFlavor);
  return origins.problem("model.flavor", fmt::format("{} has no flavor \"{}\"", asked.name, asked.flavor),
                         (best.empty() ? std::string() : fmt::format("did you mean \"{}\"? ", best[0])) +
                             "there are: " + join(flavors, ", "));
}

/// Checks options that need attention within documents, or attention that ignores their ends.
std::vector<Problem> check_document_ends(const ModelDescription& model, const JobConfig& config,
                                         const Origins& origins) {
  const std::string name = fmt::format("{} {}", config.model.name, config.model.flavor);
  std::vector<Problem> problems;
  if (config.data.packing == "document" && !model.block_causal) {
    problems.push_back(origins.problem(
        "data.packing",
        fmt::format("data.packing = \"document\" keeps documents apart, but {} attends across their ends", name),
        "choose a flavor with block-causal attention, or data.packing = \"lossless\""));
  }
  if (config.validation.enable && config.validation.dataset == "chat" && !model.block_causal) {
    problems.push_back(origins.problem(
        "validation.dataset",
        fmt::format("validation.dataset = \"chat\" keeps conversations apart, but {} attends across their ends", name),
        "train on conversations too (training.dataset = \"chat\" or a source of a mixture), or choose a flavor with "
        "block-causal attention"));
  }
  if (config.debug.replay_on_neighbours && config.debug.replay_steps > 0 && model.block_causal) {
    problems.push_back(origins.problem(
        "debug.replay_on_neighbours",
        fmt::format("debug.replay_on_neighbours = true sends tokens and labels to other ranks, but the attention of {} "
                    "also needs the ends of documents",
                    name),
        "set it to false: debug.replay_steps alone compares each rank with itself"));
  }
  return problems;
}

/// Of a pattern that matches none of `names` because it is the head's name, and the head has the embedding's weight.
std::string tie_note(const ModelDescription& model, const std::vector<std::string>& names, const JobConfig& config) {
  const std::string head = "output.weight";
  const auto unit = std::find_if(model.units.begin(), model.units.end(),
                                 [](const UnitDescription& one) { return !one.borrowed.empty(); });
  if (unit == model.units.end()) return "";
  const auto is_of_head = [&](const ParamGroup& group) {
    try {
      const std::regex pattern(group.match);
      const auto matches = [&](const std::string& name) { return std::regex_search(name, pattern); };
      return matches(head) && std::none_of(names.begin(), names.end(), matches);
    } catch (const std::regex_error&) {  // assign_parameter_groups reports it
      return false;
    }
  };
  const std::vector<ParamGroup>& groups = config.optimizer.param_groups;
  if (std::none_of(groups.begin(), groups.end(), is_of_head)) return "";
  return fmt::format("{} is tied: it is {}", head, unit->borrowed[0]);
}

/// Checks what the groups in optimizer.param_groups train, and how.
std::vector<Problem> check_trained(const ModelDescription& model, const JobConfig& config, const Origins& origins) {
  std::vector<std::string> names;
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
  }
  std::vector<Problem> problems;
  try {
    const std::vector<ParameterGroup> groups = assign_parameter_groups(names, config.optimizer.param_groups);
    const bool trains = std::any_of(groups.begin(), groups.end(), [](const ParameterGroup& group) {
      return group.lr_multiplier != 0 && !group.members.empty();
    });
    if (!trains) {
      problems.push_back(origins.problem("optimizer.param_groups",
                                         "every parameter is in a group with lr_multiplier = 0: nothing is trained",
                                         "give one group another lr_multiplier"));
    }
    // Described again with the parameter groups, since a group with lr_multiplier = 0 freezes its parameters.
    const ModelDescription trained = describe_model(config, 1);
    for (Problem& problem : update_problems(config, trained, origins)) problems.push_back(std::move(problem));
  } catch (const Error& error) {
    problems.push_back(origins.problem("optimizer.param_groups", error.what(), tie_note(model, names, config)));
  }
  return problems;
}

}  // namespace

std::vector<ConfigCheck> job_checks() { return {check_contradictions, check_sources, check_model}; }

std::vector<Problem> check_sources(const JobConfig& config, const Origins& origins) {
  if (config.training.dataset != "mixture" || config.data.mixture.empty()) return {};
  std::vector<double> weights;
  for (const MixtureSource& source : config.data.mixture) weights.push_back(source.weight);
  try {
    integer_weights(weights);
  } catch (const Error& error) {
    return {origins.problem("data.mixture", fmt::format("data.mixture: {}", error.what()), "change the weights")};
  }
  return {};
}

std::vector<Problem> check_model(const JobConfig& config, const Origins& origins) {
  const Architecture* architecture = find_architecture(config.model.name);
  if (!architecture) return check_degrees(nullptr, config, origins);  // the schema has reported the name: not twice
  std::vector<Problem> problems;
  const auto add = [&](std::vector<Problem> more) {
    for (Problem& problem : more) problems.push_back(std::move(problem));
  };
  if (std::optional<Problem> unknown = check_flavor(*architecture, config, origins)) {
    problems = check_degrees(nullptr, config, origins);
    problems.push_back(std::move(*unknown));
    return problems;
  }
  std::optional<ModelDescription> model;
  try {
    // A vocabulary that depends on the tokenizer is known only once the tokenizer is open, which comes later: 1 stands
    // for it.
    model = describe_model(make_model_request(config, 1));
    add(check_degrees(&*model, config, origins));
    add(check_kept_units(*model, config, origins));
    add(check_float8_filters(*model, config, origins));
    add(check_pipeline(config, *model, origins));
    add(check_document_ends(*model, config, origins));
  } catch (const Error& error) {
    problems = check_degrees(nullptr, config, origins);
    problems.push_back(model_problem(config, origins, error.what()));
    return problems;
  }
  add(check_trained(*model, config, origins));
  return problems;
}

}  // namespace titan
