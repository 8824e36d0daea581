// What a training start needs beyond a valid config: files that exist, enough processors. Only `titan_train train` runs
// these checks; `config show` accepts a config on any machine. They look at the file system and open no file: the part
// that reads a file checks its content.
#pragma once

#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/config/load.h"

namespace titan {

/// One line per given option that matters only among several processes.
std::vector<std::string> notes_for_one_process(const Schema& schema, const LoadedConfig& loaded);

/// Files that training reads and that are not there: tokenizer and datasets.
std::vector<Problem> check_inputs(const LoadedConfig& loaded);

/// Replaces every input path by the place it was found at, and says so for each that is not in the current folder.
/// A relative path written in a config file is looked for in the current folder, then in the folder of that file and in
/// the three above it; one from the command line in the current folder only.
std::vector<std::string> locate_inputs(LoadedConfig& loaded);

/// Reports CPU thread counts above `processors`.
std::vector<Problem> check_threads(const LoadedConfig& loaded, int64_t processors);

/// Everything that keeps `loaded` from being trained here.
struct StartCheck {
  std::vector<Problem> problems;      ///< by place, those of the config itself included
  ExitCode code = ExitCode::success;  ///< bad_data when files are missing and nothing else is wrong, else bad_config
};
StartCheck check_start(const LoadedConfig& loaded, int64_t processors);

}  // namespace titan
