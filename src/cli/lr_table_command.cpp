#include <fmt/format.h>

#include <iostream>

#include "titan/base/error.h"
#include "titan/cli/commands.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"
#include "titan/job/learning_rate.h"

namespace titan {

int run_lr_table(const Schema& schema, std::span<const std::string> arguments) {
  const LoadedConfig loaded = load_config(schema, arguments, job_checks());
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  std::vector<std::string> notes;
  const LearningRateSchedule schedule = make_schedule(loaded.config, notes);
  for (const std::string& note : notes) std::cerr << note << '\n';
  const OptimizerSection& optimizer = loaded.config.optimizer;
  if (optimizer.name == OptimizerKind::muon) {
    std::cerr << fmt::format(
        "lr is the rate of what AdamW steps; that of the matrices is factor times optimizer.muon.lr = {}\n",
        optimizer.muon.lr);
  }
  std::cout << fmt::format("{:>10}  {:>12}  {:>10}\n", "step", "lr", "factor");
  for (int64_t step = 1; step <= loaded.config.training.steps; ++step) {
    std::cout << fmt::format("{:>10}  {:>12.6e}  {:>10.6f}\n", step, schedule.rate(step), schedule.factor(step));
  }
  return 0;
}

}  // namespace titan
