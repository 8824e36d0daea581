#include <filesystem>
#include <iostream>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/cli/options.h"
#include "titan/job/checks.h"
#include "titan/tools/supervise.h"

namespace titan {

int run_restart(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<RestartOptions> options = parse_restart(arguments, std::cout);
  if (!options) return 0;
  std::vector<std::string> words = options->rest;
  // A script that also starts other commands gets back what they ended with.
  if (trains_nothing(words)) return static_cast<int>(options->exit_code);
  if (!words.empty() && words[0] == "train") words.erase(words.begin());
  const LoadedConfig loaded = load_run_job(schema, words, {});
  if (const int code = report_config_problems(loaded)) return code;
  const JobConfig& config = loaded.config;
  // The config may be valid for a run without restarts, so the run's own exit code is returned.
  if (const std::vector<Problem> problems = restart_problems(config, loaded.origins); !problems.empty()) {
    for (const Problem& problem : problems) {
      std::cerr << fmt::format("titan_train restart: not started again: {}\n", format_problem(problem));
    }
    return static_cast<int>(options->exit_code);
  }
  const Supervision supervision{.folder = config.job.dump_folder,
                                .checkpoints = std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder,
                                .supervisor = options->supervisor,
                                .restarts = options->restarts,
                                .host = {},
                                .counts_by_record = true,
                                .has_outer_launcher = true,
                                .follows_restart = follows_failure()};
  std::string problem;
  std::vector<EndedAttempt> attempts = recorded_attempts(supervision, problem);
  if (!problem.empty()) std::cerr << fmt::format("titan_train restart: {}\n", problem);
  AttemptEnd end;
  end.ranks.exit_code = static_cast<int>(options->exit_code);
  end.ranks.failed = end.ranks.ended = wall_time();
  // Times in the folder are those of the ranks' hosts, whose clocks may differ. What an attempt left there is removed
  // with the decision that follows, so all of it is older than the job, or this attempt's.
  constexpr double kClocksDiffer = 60;
  if (options->began > 0) {
    end.begin = static_cast<double>(options->began) - kClocksDiffer;
  } else if (!attempts.empty()) {
    end.begin = attempts.back().ended;
  }
  const RestartDecision decision = judge_attempt(supervision, end, attempts);
  if (!decision.sentence.empty()) std::cerr << fmt::format("titan_train restart: {}\n", decision.sentence);
  return decision.restarts ? static_cast<int>(ExitCode::requeue) : decision.exit_code;
}

}  // namespace titan
