// Checks of what this run or this machine cannot provide, collected in one list.
#include "titan/job/start.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/text.h"
#include "titan/job/data_order.h"
#include "titan/job/job.h"

namespace titan {

// Input files named in a config: where they are, and the error if they are missing.

namespace {

constexpr const char* kTrainingPath = "training.dataset_path";
constexpr const char* kValidationPath = "validation.dataset_path";
constexpr const char* kMixture = "data.mixture";

const char* tokenizer_key(const JobConfig& config) {
  return config.model.tokenizer_path ? "model.tokenizer_path" : "model.hf_assets_path";
}

/// Calls `visit` with key and path of each input that the job reads.
template <class Config, class Visit>
void visit_inputs(Config& config, const Visit& visit) {
  auto& model = config.model;
  visit(tokenizer_key(config), model.tokenizer_path ? *model.tokenizer_path : model.hf_assets_path);
  if (config.training.dataset == "mixture") {
    for (auto& source : config.data.mixture) visit(kMixture, source.path);
  } else if (config.training.dataset_path) {
    visit(kTrainingPath, *config.training.dataset_path);
  }
  if (config.validation.enable && config.validation.dataset_path) {
    visit(kValidationPath, *config.validation.dataset_path);
  }
}

const InputPlace& place_of(const std::vector<InputPlace>& inputs, const InputPath& input) {
  const auto found =
      std::find_if(inputs.begin(), inputs.end(), [&](const InputPlace& place) { return place.input == input; });
  TITAN_CHECK(found != inputs.end(), input.key, input.path);
  return *found;
}

/// The `what` of a missing input.
std::string missing(const InputPlace& place) {
  std::string what = fmt::format("{} = \"{}\" does not exist", place.input.key, place.input.path);
  return place.searched.empty() ? what : what + fmt::format(" (looked in {})", join(place.searched, ", "));
}

/// A corpus that has no path: its name alone would have to be downloaded.
void check_download(const std::string& section, const std::string& dataset, const std::optional<std::string>& path,
                    const Origins& origins, std::vector<Problem>& problems) {
  // Own files without a path are left to check_contradictions, which knows what they need.
  const bool own = dataset == "text" || dataset == "chat" || dataset == "nanogpt";
  if (path || dataset == "mixture" || own) return;
  problems.push_back(origins.problem(
      section + ".dataset", fmt::format("{}.dataset = \"{}\" is not downloaded", section, dataset),
      fmt::format("point {}.dataset_path at local .jsonl, .txt or .bin files, such as configs/corpora/stories{}.jsonl",
                  section, section == "validation" ? "_validation" : "")));
}

Problem missing_input(const LoadedConfig& loaded, const InputPlace& place) {
  const std::string& key = place.input.key;
  if (key != tokenizer_key(loaded.config)) {
    return loaded.origins.problem(key, missing(place), "name a file or folder that is there, or a glob that matches");
  }
  return {loaded.origins.place(key), "model.tokenizer_path", missing(place),
          "name a tokenizer file, a folder that holds one, or the .bin file of ids that is trained on, in "
          "model.tokenizer_path, such as configs/tokenizers/stories.model",
          Severity::error};
}

}  // namespace

std::vector<InputPath> input_paths(const JobConfig& config) {
  std::vector<InputPath> paths;
  visit_inputs(config, [&](const char* key, const std::string& path) { paths.push_back({key, path}); });
  return paths;
}

std::vector<Problem> check_inputs(const LoadedConfig& loaded, const std::vector<InputPlace>& inputs) {
  std::vector<Problem> problems;
  const JobConfig& config = loaded.config;
  check_download("training", config.training.dataset, config.training.dataset_path, loaded.origins, problems);
  if (config.validation.enable) {
    check_download("validation", config.validation.dataset, config.validation.dataset_path, loaded.origins, problems);
  }
  for (const InputPath& input : input_paths(config)) {
    const InputPlace& place = place_of(inputs, input);
    if (!place.found) problems.push_back(missing_input(loaded, place));
  }
  return problems;
}

std::vector<std::string> use_found_inputs(LoadedConfig& loaded, const std::vector<InputPlace>& inputs) {
  std::vector<std::string> lines;
  visit_inputs(loaded.config, [&](const char* key, std::string& path) {
    const std::optional<std::string>& found = place_of(inputs, {key, path}).found;
    if (!found || *found == path) return;
    lines.push_back(fmt::format("{} = \"{}\" is not in the current folder; using {}", key, path, *found));
    path = *found;
  });
  return lines;
}

namespace {

/// The threads of one product wait for each other; more than this many per processor make a step extremely slow.
constexpr int64_t kThreadsPerProcessor = 4;

/// True if `reported` covers `problem`, or if `problem` concerns a default that the user may not have chosen, because
/// the config file or model.from_hf could not be read, or a mistyped key most likely meant this option.
bool is_settled(const Problem& problem, const std::vector<Problem>& reported) {
  return std::any_of(reported.begin(), reported.end(), [&](const Problem& other) {
    const bool same = !other.key.empty() && (problem.key == other.key || problem.key.starts_with(other.key + "."));
    const bool unread = other.key == "job.config_file" || other.key == "model.from_hf" ||
                        (other.where.kind == Place::Kind::file && other.key.empty());
    return same || (unread && problem.where.kind == Place::Kind::default_value);
  });
}

}  // namespace

std::vector<Problem> check_threads(const LoadedConfig& loaded, int64_t processors) {
  const std::string key = "training.threads";
  const int64_t most = kThreadsPerProcessor * std::max<int64_t>(1, processors);
  if (loaded.config.training.threads <= most) return {};
  return {loaded.origins.problem(key,
                                 fmt::format("{} = {} on {} processors: so many threads only wait for each other", key,
                                             loaded.config.training.threads, processors),
                                 fmt::format("use at most {}, or 0 for one per processor", most))};
}

StartCheck check_start(const LoadedConfig& loaded, const MachineFacts& facts) {
  StartCheck start{loaded.problems, ExitCode::success};
  auto add = [&](const std::vector<Problem>& more, ExitCode code) {
    for (const Problem& problem : more) {
      if (is_settled(problem, loaded.problems)) continue;
      start.problems.push_back(problem);
      if (start.code == ExitCode::success) start.code = code;
    }
  };
  if (!loaded.problems.empty()) start.code = ExitCode::bad_config;
  add(check_threads(loaded, facts.processors), ExitCode::bad_config);
  if (facts.validates_on_training_corpus) {
    add(check_validation_share(loaded.config, loaded.origins), ExitCode::bad_config);
  }
  if (!loaded.config.memory_estimation.enable) add(check_inputs(loaded, facts.inputs), ExitCode::bad_data);
  sort_by_place(start.problems);
  return start;
}

}  // namespace titan
