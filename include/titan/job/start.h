// Checks that training needs beyond a valid config: input files exist, enough processors. Only `titan_train train` and
// `launch` run them; `config show` accepts a config on any machine. Pure functions: what they must know of the machine
// is passed to them (titan/cli/facts.h gathers it). They only ask whether files exist; the code that reads a file
// checks its content.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/config/load.h"

namespace titan {

/// An option that names an input of training, and the path that it gives.
struct InputPath {
  std::string key;
  std::string path;

  bool operator==(const InputPath&) const = default;
};

/// The inputs of training: tokenizer, corpus or the sources of a mixture, corpus of validation.
std::vector<InputPath> input_paths(const JobConfig& config);

/// Where an input is on this machine.
struct InputPlace {
  InputPath input;
  std::optional<std::string> found;   ///< a path that can be opened; none: no such file was found
  std::vector<std::string> searched;  ///< folders in which a relative path was searched
};

struct MachineFacts {
  int64_t processors = 1;
  std::vector<InputPlace> inputs;  ///< of all input_paths
  /// With data.order = "megatron": training.dataset_path and validation.dataset_path lead to the same file.
  bool validates_on_training_corpus = false;
};

/// Missing input files of training: tokenizer and datasets.
std::vector<Problem> check_inputs(const LoadedConfig& loaded, const std::vector<InputPlace>& inputs);

/// Replaces every input path by the path where it was found, and returns a line for each that is not in the current
/// folder.
std::vector<std::string> use_found_inputs(LoadedConfig& loaded, const std::vector<InputPlace>& inputs);

/// Reports CPU thread counts above `processors`.
std::vector<Problem> check_threads(const LoadedConfig& loaded, int64_t processors);

/// Everything that prevents training of `loaded` on this machine.
struct StartCheck {
  std::vector<Problem> problems;      ///< sorted by place, including those of the config itself
  ExitCode code = ExitCode::success;  ///< bad_data if missing files are the only problems, else bad_config
};
StartCheck check_start(const LoadedConfig& loaded, const MachineFacts& facts);

}  // namespace titan
