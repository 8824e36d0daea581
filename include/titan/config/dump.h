// A config as text: TOML that loads back to the same config, JSON for programs, and the difference of two.
// Behind `config show`, `config diff`, job.print_config and job.save_config_file. What is written follows from the
// schema alone, so an option added there appears here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// Every option that does something, by section. With `origins`, a comment says where each given value comes from.
/// Options that are none are written as comments; job.config_file too, since a file cannot name itself.
std::string dump_toml(const Schema& schema, const JobConfig& config, const Origins* origins = nullptr);

/// The same as nested objects, none as null.
std::string dump_json(const Schema& schema, const JobConfig& config);

/// One of the configs that are compared.
struct DiffSide {
  const JobConfig& config;
  std::string title = {};            ///< of its column, such as the file's name
  const Origins* origins = nullptr;  ///< to show the spelling of a value that was given under a former one
};

/// A line of titles and one per option whose value differs; empty when none does (job.config_file is left out).
std::string diff_configs(const Schema& schema, const DiffSide& a, const DiffSide& b);

/// An option that has another value than in a config that was written by dump_json.
struct ChangedOption {
  std::string key;
  std::string words;  ///< "training.seq_len = 128 (was 64)"
};

/// All of those. Left out are job.config_file and what the writer of `before` did not know.
std::vector<ChangedOption> changes_since(const Schema& schema, const nlohmann::ordered_json& before,
                                         const JobConfig& config);

}  // namespace titan
