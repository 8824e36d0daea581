// What a config asks for that this run or this machine cannot give, and all of it as one list.
#include "titan/config/start.h"

#include <fmt/format.h>

#include <algorithm>

namespace titan {
namespace {

/// Threads of one product wait for each other; with more than this many per processor a step hardly moves.
constexpr int64_t kThreadsPerProcessor = 4;

/// Whether what is wrong already says it, or makes it uncertain: a file that could not be read, or a mistyped key that
/// most likely meant this option, leaves a default that nobody chose.
bool is_settled(const Problem& problem, const std::vector<Problem>& told) {
  return std::any_of(told.begin(), told.end(), [&](const Problem& other) {
    const bool same = !other.key.empty() && (problem.key == other.key || problem.key.starts_with(other.key + "."));
    const bool unread = other.key == "job.config_file" || (other.where.kind == Place::Kind::file && other.key.empty());
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
  add(check_inputs(loaded), ExitCode::bad_data);
  sort_by_place(start.problems);
  return start;
}

}  // namespace titan
