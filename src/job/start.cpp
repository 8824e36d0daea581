// Checks of what this run or this machine cannot provide, collected in one list.
#include "titan/job/start.h"

#include <fmt/format.h>
#include <glob.h>
#include <algorithm>
#include <filesystem>

#include "titan/base/text.h"
#include "titan/job/job.h"

namespace titan {

// Input files named in a config: where to search, and the error if they are missing.

namespace {

namespace fs = std::filesystem;

/// A config file's folder and the parents to search: one of them may be the root of the checkout or installation.
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

/// The folders in which an option's relative path is searched, in order.
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

/// A path that can be opened: `path` itself if it exists, else the first match in the folders; nothing if there is
/// none.
std::optional<std::string> find_input(const LoadedConfig& loaded, const std::string& key, const std::string& path) {
  if (is_there(path)) return path;
  if (fs::path(path).is_absolute()) return std::nullopt;
  for (const fs::path& folder : folders_for(loaded, key)) {
    const fs::path candidate = (folder / path).lexically_normal();
    if (is_there(candidate)) return candidate.string();
  }
  return std::nullopt;
}

/// The `what` of a missing input.
std::string missing(const LoadedConfig& loaded, const std::string& key, const std::string& path) {
  std::string what = fmt::format("{} = \"{}\" does not exist", key, path);
  if (fs::path(path).is_absolute()) return what;
  std::vector<std::string> folders;
  for (const fs::path& folder : folders_for(loaded, key)) folders.push_back(folder.string());
  return what + fmt::format(" (looked in {})", join(folders, ", "));
}

void check_dataset(const std::string& section, const std::string& dataset, const std::optional<std::string>& path,
                   const LoadedConfig& loaded, std::vector<Problem>& problems) {
  if (dataset == "mixture") return;
  const std::string key = section + ".dataset_path";
  if (path) {
    if (find_input(loaded, key, *path)) return;
    problems.push_back(loaded.origins.problem(key, missing(loaded, key, *path),
                                              "name a file or folder that is there, or a glob that matches"));
    // "text" and "chat" without a path are left to check_contradictions, which knows what they need.
  } else if (dataset != "text" && dataset != "chat") {
    problems.push_back(loaded.origins.problem(
        section + ".dataset", fmt::format("{}.dataset = \"{}\" is not downloaded", section, dataset),
        fmt::format("point {} at local .jsonl, .txt or .bin files, such as configs/corpora/stories{}.jsonl", key,
                    section == "validation" ? "_validation" : "")));
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
  if (config.training.dataset_path) {
    locate(loaded, "training.dataset_path", *config.training.dataset_path, lines);
  }
  if (config.training.dataset == "mixture") {
    for (MixtureSource& source : config.data.mixture) locate(loaded, "data.mixture", source.path, lines);
  }
  if (config.validation.enable && config.validation.dataset_path) {
    locate(loaded, "validation.dataset_path", *config.validation.dataset_path, lines);
  }
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

bool says_something(const Option& option, const LoadedConfig& loaded) {
  if (!option.read || !loaded.origins.is_set(option.key)) return false;
  const bool on_command_line = loaded.origins.place(option.key).kind == Place::Kind::command_line;
  return on_command_line || option.read(loaded.config) != option.default_for(generation_of(loaded.config));
}

}  // namespace

std::vector<std::string> notes_for_one_process(const Schema& schema, const LoadedConfig& loaded) {
  std::vector<std::string> notes;
  for (const Option& option : schema.options()) {
    if (option.idle_alone.empty() || !says_something(option, loaded)) continue;
    notes.push_back(fmt::format("{}: {} has no effect here: {}", loaded.origins.place(option.key).to_string(),
                                option.key, option.idle_alone));
  }
  return notes;
}

std::vector<Problem> check_threads(const LoadedConfig& loaded, int64_t processors) {
  const std::string key = "training.threads";
  const int64_t most = kThreadsPerProcessor * std::max<int64_t>(1, processors);
  if (loaded.config.training.threads <= most) return {};
  return {loaded.origins.problem(key,
                                 fmt::format("{} = {} on {} processors: so many threads only wait for each other", key,
                                             loaded.config.training.threads, processors),
                                 fmt::format("use at most {}, or 0 for one per processor", most))};
}

std::string host_wait_obstacle(const JobConfig& config, bool on_gpu) {
  if (!on_gpu || !config.debug.sync_check || !config.training.enable_cpu_offload) return {};
  const auto waits = [](std::string_view option, std::string_view waits_for) {
    return fmt::format(
        "debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true and {} = true "
        "together also wait for {}; disable one of the three",
        option, waits_for);
  };
  if (config.optimizer.early_step_in_backward) {
    return waits("optimizer.early_step_in_backward", "each block's gradients, which its optimizer steps at once");
  }
  const std::optional<LinearFloat8Section> float8 = float8_options(config);
  if (float8 && float8->enable_fsdp_float8_all_gather) {
    return waits("quantize.linear.float8.enable_fsdp_float8_all_gather",
                 "the scales of each block's weights, which it casts itself");
  }
  return {};
}

StartCheck check_start(const LoadedConfig& loaded, int64_t processors) {
  StartCheck start{loaded.problems, ExitCode::success};
  auto add = [&](const std::vector<Problem>& more, ExitCode code) {
    for (const Problem& problem : more) {
      if (is_settled(problem, loaded.problems)) continue;
      start.problems.push_back(problem);
      if (start.code == ExitCode::success) start.code = code;
    }
  };
  if (!loaded.problems.empty()) start.code = ExitCode::bad_config;
  add(check_threads(loaded, processors), ExitCode::bad_config);
  if (!loaded.config.memory_estimation.enable) add(check_inputs(loaded), ExitCode::bad_data);
  sort_by_place(start.problems);
  return start;
}

}  // namespace titan
