// The files a config names: where they are looked for, and what is said when they are not there.
#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "titan/base/text.h"
#include "titan/config/start.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// Folders above a config file that may be the checkout or installation it belongs to.
constexpr int kLevels = 4;

bool matches_a_file(const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return false;
  glob_t matches{};
  const bool found = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches) == 0;
  ::globfree(&matches);
  return found;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) || matches_a_file(path.string());
}

/// Where the path of an option is looked for, in order; an absolute path in one place only.
std::vector<fs::path> folders_for(const LoadedConfig& loaded, const std::string& key) {
  std::error_code ignored;
  std::vector<fs::path> folders{fs::current_path(ignored)};
  if (loaded.origins.place(key).kind != Place::Kind::file) return folders;
  fs::path folder = fs::absolute(loaded.config.job.config_file, ignored).lexically_normal().parent_path();
  for (int level = 0; level < kLevels; ++level, folder = folder.parent_path()) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

/// The path as it can be opened: as given when that is there, else the first place where it is; nothing when it is
/// nowhere.
std::optional<std::string> find_input(const LoadedConfig& loaded, const std::string& key, const std::string& path) {
  if (is_there(path)) return path;
  if (fs::path(path).is_absolute()) return std::nullopt;
  for (const fs::path& folder : folders_for(loaded, key)) {
    const fs::path candidate = (folder / path).lexically_normal();
    if (is_there(candidate)) return candidate.string();
  }
  return std::nullopt;
}

/// `what` of an input that is nowhere.
std::string missing(const LoadedConfig& loaded, const std::string& key, const std::string& path) {
  std::string what = fmt::format("{} = \"{}\" does not exist", key, path);
  if (fs::path(path).is_absolute()) return what;
  std::vector<std::string> folders;
  for (const fs::path& folder : folders_for(loaded, key)) folders.push_back(folder.string());
  return what + fmt::format(" (looked in {})", join(folders, ", "));
}

void check_dataset(const std::string& section, const std::string& dataset, const std::optional<std::string>& path,
                   const LoadedConfig& loaded, std::vector<Problem>& problems) {
  if (dataset == "stories" || dataset == "mixture") return;
  const std::string key = section + ".dataset_path";
  if (path) {
    if (find_input(loaded, key, *path)) return;
    problems.push_back(loaded.origins.problem(key, missing(loaded, key, *path),
                                              "name a file or folder that is there, or a glob that matches"));
  } else if (dataset != "text") {  // text without a path is a contradiction of the config itself
    problems.push_back(loaded.origins.problem(
        section + ".dataset", fmt::format("{}.dataset = \"{}\" is not downloaded", section, dataset),
        fmt::format("point {} at local .jsonl, .txt or .bin files, or say \"stories\"", key)));
  }
}

void locate(const LoadedConfig& loaded, const std::string& key, std::string& path, std::vector<std::string>& lines) {
  const std::optional<std::string> found = find_input(loaded, key, path);
  if (!found || *found == path) return;
  lines.push_back(fmt::format("{} = \"{}\" is not in the current folder; using {}", key, path, *found));
  path = *found;
}

}  // namespace

std::vector<Problem> check_inputs(const LoadedConfig& loaded) {
  std::vector<Problem> problems;
  const JobConfig& config = loaded.config;
  check_dataset("training", config.training.dataset, config.training.dataset_path, loaded, problems);
  if (config.validation.enable) {
    check_dataset("validation", config.validation.dataset, config.validation.dataset_path, loaded, problems);
  }
  for (const MixtureSource& source : config.data.mixture) {
    if (config.training.dataset != "mixture" || find_input(loaded, "data.mixture", source.path)) continue;
    problems.push_back(loaded.origins.problem("data.mixture", missing(loaded, "data.mixture", source.path),
                                              "name a file or folder that is there, or a glob that matches"));
  }
  const std::string key = config.model.tokenizer_path ? "model.tokenizer_path" : "model.hf_assets_path";
  const std::string& tokenizer = tokenizer_location(config);
  if (!find_input(loaded, key, tokenizer)) {
    problems.push_back(
        {loaded.origins.place(key), "model.tokenizer_path", missing(loaded, key, tokenizer),
         "name a tokenizer file, a folder that holds one, or the .bin file of ids that is trained on, in "
         "model.tokenizer_path, such as configs/tokenizers/stories.model",
         Severity::error});
  }
  return problems;
}

std::vector<std::string> locate_inputs(LoadedConfig& loaded) {
  std::vector<std::string> lines;
  JobConfig& config = loaded.config;
  if (config.model.tokenizer_path) {
    locate(loaded, "model.tokenizer_path", *config.model.tokenizer_path, lines);
  } else {
    locate(loaded, "model.hf_assets_path", config.model.hf_assets_path, lines);
  }
  if (config.training.dataset_path && config.training.dataset != "stories") {
    locate(loaded, "training.dataset_path", *config.training.dataset_path, lines);
  }
  if (config.training.dataset == "mixture") {
    for (MixtureSource& source : config.data.mixture) locate(loaded, "data.mixture", source.path, lines);
  }
  if (config.validation.enable && config.validation.dataset_path && config.validation.dataset != "stories") {
    locate(loaded, "validation.dataset_path", *config.validation.dataset_path, lines);
  }
  return lines;
}

}  // namespace titan
