// A config as text: TOML that loads back to the same config, JSON for programs, and the difference of two.
#pragma once

#include <string>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// Every option that does something, by section. With `origins`, a comment says where each given value comes from.
/// Options that are none are written as comments; job.config_file too, since a file cannot name itself.
std::string dump_toml(const Schema& schema, const JobConfig& config, const Origins* origins = nullptr);

/// The same as nested objects, none as null.
std::string dump_json(const Schema& schema, const JobConfig& config);

/// One line per option whose value differs, "key  a  b"; empty when none does (job.config_file is left out).
std::string diff_configs(const Schema& schema, const JobConfig& a, const JobConfig& b);

}  // namespace titan
