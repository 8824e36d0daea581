#include "titan/config/load.h"

#include <fmt/format.h>
#include <glob.h>
#include <algorithm>
#include <filesystem>
#include <set>

#include "given.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/config/start.h"

namespace titan {
namespace {

/// True if `problem` concerns an option or section that already has an error, which makes cross-option checks
/// unreliable.
bool speaks_of(const Problem& problem, const std::set<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const bool names_an_option = key.find('.') != std::string::npos;
    return problem.key == key || problem.key.starts_with(key + ".") ||
           (names_an_option && problem.what.find(key) != std::string::npos);
  });
}

/// True if a later, more specific check reports the same problem of the same option, possibly with more detail.
bool is_repeated_later(const Problem& problem, std::span<const Problem> later) {
  return std::any_of(later.begin(), later.end(), [&](const Problem& other) {
    return other.key == problem.key && !problem.what.empty() && other.what.starts_with(problem.what);
  });
}

void run_checks(std::span<const ConfigCheck> checks, LoadedConfig& loaded) {
  std::set<std::string> wrong_already;
  for (const Problem& problem : loaded.problems) {
    if (!problem.key.empty()) wrong_already.insert(problem.key);
  }
  std::vector<Problem> found = check_contradictions(loaded.config, loaded.origins);
  for (const ConfigCheck& check : checks) {
    std::vector<Problem> more = check(loaded.config, loaded.origins);
    found.insert(found.end(), more.begin(), more.end());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Problem& problem = found[i];
    if (speaks_of(problem, wrong_already) || is_repeated_later(problem, std::span(found).subspan(i + 1))) continue;
    if (problem.severity == Severity::note) {
      loaded.notes.push_back(format_problem(problem));
    } else {
      loaded.problems.push_back(std::move(problem));
    }
  }
}

/// December 2024's default: as many microbatches as stages.
void derive_december_microbatches(Settings& settings) {
  const std::string key = "parallelism.pipeline_parallel_microbatch_size";
  auto degree = settings.get<int64_t>("parallelism.pipeline_parallel_degree");
  if (settings.generation() != Generation::december_2024 || degree < 2 || settings.is_set(key)) return;
  const auto& schedule = settings.get<std::string>("parallelism.pipeline_parallel_schedule");
  bool one_stage_per_rank = schedule == "1F1B" || schedule == "GPipe" || schedule == "PipelineScheduleSingle";
  auto points = std::ssize(settings.get<std::vector<std::string>>("parallelism.pipeline_parallel_split_points"));
  int64_t stages = points > 0 ? points + 1 : one_stage_per_rank ? degree : 2 * degree;
  auto batch = settings.get<int64_t>("training.local_batch_size");
  if (batch % stages == 0) {
    settings.set(key, Value(batch / stages), Level::default_value, {}, {});
  }
}

void derive_following(const Schema& schema, Settings& settings) {
  for (const Option& option : schema.options()) {
    if (option.follows.empty() || settings.is_set(option.key)) continue;
    settings.set(option.key, settings.value(option.follows), Level::default_value, {}, {});
  }
}

/// torchtitan's files of 2026 call the model llama3 and load Llama 3.1 weights; that llama3 used Llama 3.1's rotary
/// scaling for every flavor.
void derive_rope_scaling(Settings& settings) {
  const std::string key = "model.rope_scaling";
  const bool names_them = settings.get<std::string>("model.name") == "llama3" &&
                          settings.get<std::string>("model.hf_assets_path").find("Llama-3.1") != std::string::npos;
  if (names_them && !settings.is_set(key)) {
    settings.set(key, Value(std::string("llama3_1")), Level::default_value, {}, {});
  }
}

/// A path with or without trailing slashes (which tab completion writes) is one path: its last part is its name.
void drop_trailing_slashes(JobConfig& config) {
  const auto drop = [](std::string& path) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  };
  CheckpointSection& checkpoint = config.checkpoint;
  for (std::string* path :
       {&config.job.dump_folder, &config.model.from_hf, &config.model.hf_assets_path, &checkpoint.folder}) {
    drop(*path);
  }
  for (std::optional<std::string>* path : {&config.model.tokenizer_path, &config.training.dataset_path,
                                           &config.validation.dataset_path, &checkpoint.initial_load_path}) {
    if (*path) drop(**path);
  }
  for (MixtureSource& source : config.data.mixture) drop(source.path);
}

LoadedConfig load(const Schema& schema, const detail::TomlDocument& document, const detail::CommandLine& command_line,
                  std::vector<Problem> problems, std::span<const ConfigCheck> checks) {
  LoadedConfig loaded;
  loaded.problems = std::move(problems);
  detail::GivenReader reader(schema, loaded.problems);
  if (document.syntax_error) loaded.problems.push_back(*document.syntax_error);
  reader.read(document);
  reader.read(command_line);
  const detail::GenerationChoice choice = detail::decide_generation(reader.all(), loaded.problems);
  loaded.generation_reason = choice.reason;
  Settings settings(schema, choice.generation);
  detail::apply_given(reader.all(), settings, loaded.problems, loaded.renamed);
  derive_december_microbatches(settings);
  derive_following(schema, settings);
  derive_rope_scaling(settings);
  detail::apply_hugging_face_config(settings, loaded.problems);
  loaded.config = settings.config();
  drop_trailing_slashes(loaded.config);
  loaded.origins = settings.origins();
  detail::judge_effects(schema, settings, loaded.config, loaded.problems, loaded.notes);
  run_checks(checks, loaded);
  sort_by_place(loaded.problems);
  return loaded;
}

/// The config file that the command line names; reports a problem if it names two different ones.
std::string config_file_of(const detail::CommandLine& command_line, std::vector<Problem>& problems) {
  std::string file = command_line.config_file.value_or("");
  for (const detail::CommandLineWord& word : command_line.words) {
    if (word.key != "job.config_file") continue;
    if (command_line.config_file && word.value != *command_line.config_file) {
      problems.push_back({word.place, word.key,
                          fmt::format("two config files, {} and {}", *command_line.config_file, word.value), "give one",
                          Severity::error});
    }
    file = word.value;
  }
  return file;
}

}  // namespace

std::string config_file_remedy(const std::string& word) {
  std::vector<std::string> files{word + ".toml", "configs/" + word, "configs/" + word + ".toml"};
  if (word.ends_with("debugmodel")) files.emplace_back("configs/debug_model.toml");  // llama3_debugmodel in torchtitan
  for (const std::string& file : files) {
    std::error_code none;
    if (std::filesystem::is_regular_file(file, none)) return fmt::format("did you mean {}?", file);
  }
  return "name a TOML file, such as configs/debug_model.toml";
}

LoadedConfig load_config(const Schema& schema, std::span<const std::string> arguments,
                         std::span<const ConfigCheck> checks) {
  detail::CommandLine command_line = detail::read_command_line(schema, arguments);
  std::vector<Problem> problems = std::move(command_line.problems);
  std::string file = config_file_of(command_line, problems);
  detail::TomlDocument document;
  if (!file.empty()) {
    try {
      const std::string text = read_text_file(file, ExitCode::bad_config, detail::kMostTomlBytes);
      document = detail::read_toml(text, file);
    } catch (const Error& error) {
      problems.push_back(
          {Place{Place::Kind::file, file}, "job.config_file", error.what(), config_file_remedy(file), Severity::error});
    }
  }
  LoadedConfig loaded = load(schema, document, command_line, std::move(problems), checks);
  loaded.config.job.config_file = file;
  return loaded;
}

LoadedConfig load_config_text(const Schema& schema, std::string_view text, const std::string& name,
                              std::span<const std::string> overrides, std::span<const ConfigCheck> checks) {
  detail::CommandLine command_line = detail::read_command_line(schema, overrides);
  std::vector<Problem> problems = std::move(command_line.problems);
  LoadedConfig loaded = load(schema, detail::read_toml(text, name), command_line, std::move(problems), checks);
  loaded.config.job.config_file = name;
  return loaded;
}

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
  } else if (dataset != "text" && dataset != "chat") {  // without a path, check_contradictions reports these two
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

}  // namespace titan
