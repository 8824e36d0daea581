// Turns a command line (and the TOML file it names) into a typed config and collects all problems. Never throws for
// user errors; uses no device and no communicator; reads no files but the config and those whose content is part of it:
// model.from_hf's config.json and the pipeline schedule.
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
  Origins origins;                                 ///< the place of each given option
  std::vector<Problem> problems;                   ///< errors only; if there are any, do not run with `config`
  std::vector<std::string> notes;                  ///< one line each: options without effect, adjusted values
  std::vector<std::string> notes_for_one_process;  ///< options without effect if the run has a single process
  std::vector<std::string> renamed;                ///< one line per former spelling with its current one
  std::string generation_reason;                   ///< why job.generation has its value
};

/// Reads `arguments` (without the program's name): `[FILE] [--section.key value]…`, see docs/configuration.md.
/// Precedence: command line, file, defaults of the generation. `checks` run on the typed config (those of every
/// command: job_checks() of job/checks.h); their notes are added to `notes`. Problems are sorted: file by position,
/// then command line.
LoadedConfig load_config(const Schema& schema, std::span<const std::string> arguments,
                         std::span<const ConfigCheck> checks = {});

/// The line for the log about defaults and formulas of December 2024; empty for a config of the last generation.
std::string december_line(const LoadedConfig& loaded);

/// "did you mean configs/llama3_8b.toml?" for llama3_8b if that file exists, otherwise what a config file is.
std::string config_file_remedy(const std::string& word);

}  // namespace titan
