#include "titan/config/load.h"

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <set>

#include "given.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

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
  std::vector<Problem> found;
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

/// Keeps an error instead of throwing it: check_pipeline reports it, and only if the job has a pipeline.
void read_schedule(ParallelismSection& parallelism) {
  const std::string& file = parallelism.pipeline_parallel_schedule_csv;
  if (file.empty()) return;
  try {
    parallelism.custom_schedule.text = read_text_file(file, ExitCode::bad_config);
  } catch (const Error& error) {
    parallelism.custom_schedule.error = error.what();
  }
}

/// The config file that the command line names; reports a problem if it names two different ones.
std::string config_file_of(detail::CommandLine& command_line) {
  std::string file = command_line.config_file.value_or("");
  for (const detail::CommandLineWord& word : command_line.words) {
    if (word.key != "job.config_file") continue;
    if (command_line.config_file && word.value != *command_line.config_file) {
      command_line.problems.push_back(
          {word.place, word.key, fmt::format("two config files, {} and {}", *command_line.config_file, word.value),
           "give one", Severity::error});
    }
    file = word.value;
  }
  return file;
}

}  // namespace

LoadedConfig detail::load_read(const Schema& schema, const TomlDocument& document, CommandLine command_line,
                               std::span<const ConfigCheck> checks) {
  LoadedConfig loaded;
  loaded.problems = std::move(command_line.problems);
  GivenReader reader(schema, loaded.problems);
  if (document.syntax_error) loaded.problems.push_back(*document.syntax_error);
  reader.read(document);
  reader.read(command_line);
  const GenerationChoice choice = decide_generation(reader.all(), loaded.problems);
  loaded.generation_reason = choice.reason;
  Settings settings(schema, choice.generation);
  apply_given(reader.all(), settings, loaded.problems, loaded.renamed);
  derive_december_microbatches(settings);
  derive_following(schema, settings);
  derive_rope_scaling(settings);
  apply_hugging_face_config(settings, loaded.problems, loaded.notes);
  loaded.config = settings.config();
  drop_trailing_slashes(loaded.config);
  read_schedule(loaded.config.parallelism);
  loaded.origins = settings.origins();
  judge_effects(schema, settings, loaded);
  run_checks(checks, loaded);
  sort_by_place(loaded.problems);
  return loaded;
}

std::string config_file_remedy(const std::string& word) {
  std::vector<std::string> files{word + ".toml", "configs/" + word, "configs/" + word + ".toml"};
  // torchtitan's users know it as llama3_debugmodel.
  if (word.ends_with("debugmodel")) files.emplace_back("configs/debug_model.toml");
  for (const std::string& file : files) {
    std::error_code none;
    if (std::filesystem::is_regular_file(file, none)) return fmt::format("did you mean {}?", file);
  }
  // A checkout and a bundle have the folder here. An installed wheel has it above the program, a place that users do
  // not know.
  const std::filesystem::path example = "configs/debug_model.toml";
  std::error_code none;
  for (const std::filesystem::path& file : {example, (beside_program("..") / example).lexically_normal()}) {
    if (std::filesystem::is_regular_file(file, none)) return fmt::format("name a TOML file, such as {}", file.string());
  }
  return "name a TOML file";
}

LoadedConfig load_config(const Schema& schema, std::span<const std::string> arguments,
                         std::span<const ConfigCheck> checks) {
  detail::CommandLine command_line = detail::read_command_line(schema, arguments);
  const std::string file = config_file_of(command_line);
  detail::TomlDocument document;
  if (!file.empty()) {
    try {
      const std::string text = read_text_file(file, ExitCode::bad_config, detail::kMostTomlBytes);
      document = detail::read_toml(text, file);
    } catch (const Error& error) {
      command_line.problems.push_back(
          {Place{Place::Kind::file, file}, "job.config_file", error.what(), config_file_remedy(file), Severity::error});
    }
  }
  LoadedConfig loaded = detail::load_read(schema, document, std::move(command_line), checks);
  loaded.config.job.config_file = file;
  return loaded;
}

}  // namespace titan
