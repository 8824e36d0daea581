// Checks that training needs beyond a valid config: input files exist, enough processors. Only `titan_train train` and
// `launch` run them; `config show` accepts a config on any machine. They only test whether files exist; the code that
// reads a file checks its content.
#pragma once

#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/config/load.h"

namespace titan {

/// One line per given option that only has an effect with several processes.
std::vector<std::string> notes_for_one_process(const Schema& schema, const LoadedConfig& loaded);

/// Missing input files of training: tokenizer and datasets.
std::vector<Problem> check_inputs(const LoadedConfig& loaded);

/// Replaces every input path by the path where it was found, and returns a line for each that is not in the current
/// folder. A relative path from a config file is searched in the current folder, then in the config file's folder and
/// its three parents; one from the command line only in the current folder.
std::vector<std::string> locate_inputs(LoadedConfig& loaded);

/// Reports CPU thread counts above `processors`.
std::vector<Problem> check_threads(const LoadedConfig& loaded, int64_t processors);

/// Why debug.sync_check cannot check the steps of `config`: on a GPU the host waits in them by design. Empty: it can.
/// The wait of an optimizer on the host (WAIT_HOST) is allowed: it does not go through LibTorch, which does the check.
std::string host_wait_obstacle(const JobConfig& config, bool on_gpu);

/// Everything that prevents training of `loaded` on this machine.
struct StartCheck {
  std::vector<Problem> problems;      ///< sorted by place, including those of the config itself
  ExitCode code = ExitCode::success;  ///< bad_data if missing files are the only problems, else bad_config
};
StartCheck check_start(const LoadedConfig& loaded, int64_t processors);

}  // namespace titan
