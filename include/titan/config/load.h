// From a command line (and the TOML file it names) to a typed config, with every problem found on the way.
// Never throws for what a user wrote; touches no device, no process group and no file but the config.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

struct LoadedConfig {
  JobConfig config;
  Origins origins;                   ///< where each given option was given
  std::vector<Problem> problems;     ///< errors only; when there are any, `config` must not be used to run anything
  std::vector<std::string> notes;    ///< one line each: options without effect, adjusted values
  std::vector<std::string> renamed;  ///< one line for each former spelling, with what it is now
  std::string generation_reason;     ///< why job.generation is what it is
};

/// Reads `arguments` (without the program's name): `[FILE] [--section.key value]…`, see docs/configuration.md.
/// Values come from the command line, else the file, else the defaults of the generation. `checks` run with this part's
/// own checks, over the typed config; their notes join `notes`. Problems are sorted: file by position, then command
/// line.
LoadedConfig load_config(const Schema& schema, std::span<const std::string> arguments,
                         std::span<const ConfigCheck> checks = {});

/// The same with the text of a file at hand; `name` is what places call it.
LoadedConfig load_config_text(const Schema& schema, std::string_view text, const std::string& name,
                              std::span<const std::string> overrides = {}, std::span<const ConfigCheck> checks = {});

/// "did you mean configs/llama3_8b.toml?" for llama3_8b where there is such a file, or else what a config file is.
std::string config_file_remedy(const std::string& word);

/// This part's own checks over several options; load_config runs them.
std::vector<Problem> check_contradictions(const JobConfig& config, const Origins& origins);

}  // namespace titan
