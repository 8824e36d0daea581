#include "titan/app/job_problems.h"

#include <iostream>
#include <thread>

#include "titan/base/error.h"
#include "titan/config/config_command.h"
#include "titan/config/start.h"
#include "titan/distributed/launch_environment.h"

namespace titan {
namespace {

/// By the launchers' variables alone: the options may be what is wrong.
bool speaks_for_its_host() {
  try {
    return detect_launch({}, process_context()).local_rank == 0;
  } catch (const Error&) {
    return true;
  }
}

int print_once(const std::vector<Problem>& problems, ExitCode code) {
  if (problems.empty()) return 0;
  if (speaks_for_its_host()) {
    print_problems(std::cerr, problems);
  } else {
    std::cerr << "titan_train: the configuration has problems; local rank 0 lists them\n";
  }
  return static_cast<int>(code);
}

}  // namespace

int report_config_problems(const LoadedConfig& loaded) { return print_once(loaded.problems, ExitCode::bad_config); }

int report_job_problems(const Schema& schema, const LoadedConfig& loaded) {
  const StartCheck start = check_start(schema, loaded, std::thread::hardware_concurrency());
  return print_once(start.problems, start.code);
}

}  // namespace titan
