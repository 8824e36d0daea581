#include <algorithm>

#include "titan/job/checks.h"

namespace titan {

std::vector<Problem> restart_problems(const JobConfig& config, const Origins& origins) {
  const CheckpointSection& options = config.checkpoint;
  std::vector<Problem> problems;
  const auto add = [&](const char* key, const char* what, const char* remedy) {
    problems.push_back(origins.problem(key, what, remedy));
  };
  if (!options.enable) {
    add("checkpoint.enable", "a run without checkpoints loses all its steps when it is started again",
        "set checkpoint.enable, or run it without restarts");
  } else if (options.load_only) {
    add("checkpoint.load_only", "a run that saves no checkpoints loses its steps when it is started again",
        "leave out checkpoint.load_only, or run it without restarts");
  }
  if (options.load_step >= 0) {
    add("checkpoint.load_step", "every restart would go back to that step",
        "run it without restarts until a later step is saved, then leave out checkpoint.load_step");
  }
  const std::vector<std::string>& left_out = options.exclude_from_loading;
  // The learning rate follows from the step: without the state of its schedule nothing is lost.
  if (std::any_of(left_out.begin(), left_out.end(), [](const auto& state) { return state != "lr_scheduler"; })) {
    add("checkpoint.exclude_from_loading", "every restart would leave these states out again",
        "run it without restarts until a step is saved, then leave out the option");
  }
  return problems;
}

}  // namespace titan
