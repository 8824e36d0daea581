#include "titan/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "apply.h"
#include "generation.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

/// A check of several options says nothing sure about one whose own value, or whole section, is already wrong.
bool speaks_of(const Problem& problem, const std::set<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const bool names_an_option = key.find('.') != std::string::npos;
    return problem.key == key || problem.key.starts_with(key + ".") ||
           (names_an_option && problem.what.find(key) != std::string::npos);
  });
}

/// Whether a later check, which knows more, says the same of the same option, and maybe goes on.
bool is_told_in_full(const Problem& problem, std::span<const Problem> later) {
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
    if (speaks_of(problem, wrong_already) || is_told_in_full(problem, std::span(found).subspan(i + 1))) continue;
    if (problem.severity == Severity::note) {
      loaded.notes.push_back(format_problem(problem));
    } else {
      loaded.problems.push_back(std::move(problem));
    }
  }
}

/// December 2024 cut a batch into as many microbatches as there are stages, unless told otherwise.
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
  loaded.config = settings.config();
  loaded.origins = settings.origins();
  detail::judge_effects(schema, settings, loaded.config, loaded.problems, loaded.notes);
  run_checks(checks, loaded);
  sort_by_place(loaded.problems);
  return loaded;
}

/// The config file the command line names; two different names are a problem.
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
      document = detail::read_toml(read_file(file, ExitCode::bad_config, detail::kMostTomlBytes), file);
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

}  // namespace titan
