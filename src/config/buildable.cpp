// What a config asks for that this build or this machine cannot give: asked when training starts, never by `config
// show`.
#include <fmt/format.h>

#include <filesystem>

#include "titan/config/load.h"

namespace titan {
namespace {

void check_dataset(const std::string& section, const std::string& dataset, const std::optional<std::string>& path,
                   const Origins& origins, std::vector<Problem>& problems) {
  if (dataset == "stories") return;
  if (!path) {
    problems.push_back(origins.problem(section + ".dataset",
                                       fmt::format("{}.dataset = \"{}\" is not downloaded", section, dataset),
                                       fmt::format("point {}.dataset_path at local .jsonl or .txt files", section)));
    return;
  }
  std::error_code ignored;
  if (std::filesystem::exists(*path, ignored)) return;
  problems.push_back(origins.problem(section + ".dataset_path",
                                     fmt::format("{}.dataset_path = \"{}\" does not exist", section, *path),
                                     "name a file or folder that is there"));
}

}  // namespace

std::vector<Problem> check_buildable(const Schema& schema, const LoadedConfig& loaded) {
  std::vector<Problem> problems;
  for (const Option& option : schema.options()) {
    if (option.availability != Availability::not_built || !option.read) continue;
    Value value = option.read(loaded.config);
    bool idle = option.condition && !option.condition->holds(loaded.config);
    if (idle || option.is_harmless(value) || value == option.default_for(generation_of(loaded.config))) continue;
    problems.push_back(loaded.origins.problem(
        option.key,
        fmt::format("{} = {} needs a part that is not built yet: {}", option.key, to_toml(value), option.reason),
        fmt::format("leave it at {}", to_toml(option.default_for(generation_of(loaded.config))))));
  }
  return problems;
}

std::vector<Problem> check_inputs(const LoadedConfig& loaded) {
  std::vector<Problem> problems;
  const JobConfig& config = loaded.config;
  check_dataset("training", config.training.dataset, config.training.dataset_path, loaded.origins, problems);
  if (config.validation.enable) {
    check_dataset("validation", config.validation.dataset, config.validation.dataset_path, loaded.origins, problems);
  }
  const char* key = config.model.tokenizer_path ? "model.tokenizer_path" : "model.hf_assets_path";
  std::error_code ignored;
  if (!std::filesystem::exists(tokenizer_location(config), ignored)) {
    problems.push_back(
        loaded.origins.problem(key, fmt::format("{} = \"{}\" does not exist", key, tokenizer_location(config)),
                               "name a tokenizer file or a folder that holds one, such as configs/tokenizers"));
  }
  return problems;
}

}  // namespace titan
