// Facts of this process and machine that the checks of a job ask about: what a launcher passed to it, and which input
// files are there. Gathered here, above `job`, so that its functions depend on their arguments alone. Facts about GPUs
// need LibTorch (titan/app/commands.h).
#pragma once

#include <string>
#include <vector>

#include "titan/job/launch_environment.h"
#include "titan/job/start.h"

namespace titan {

/// The environment of the running process. TITAN_SECRET may also be the first line of the file TITAN_SECRET_FILE.
LaunchContext process_context();

/// Where the inputs of training are. A relative path from a config file is searched in the current folder, then in the
/// config file's folder and its three parents; one from the command line only in the current folder.
std::vector<InputPlace> find_inputs(const LoadedConfig& loaded);

/// What check_start asks about.
MachineFacts machine_facts(const LoadedConfig& loaded);

}  // namespace titan
