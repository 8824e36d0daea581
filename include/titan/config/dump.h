// A config as text: TOML that loads back to the same config, JSON for programs, and the difference of two configs. Used
// by `config show`, `config diff`, job.print_config and job.save_config_file. The output follows from the schema alone,
// so new options need no change here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// Every option that has an effect, by section. With `origins`, a comment states the origin of each given value.
/// Options without a value are written as comments; so is job.config_file, since a file cannot name itself.
std::string dump_toml(const Schema& schema, const JobConfig& config, const Origins* origins = nullptr);

/// The same as nested objects; options without a value are null.
std::string dump_json(const Schema& schema, const JobConfig& config);

/// One value as JSON (none: null), and the value of type `type` that it stands for; nothing if it is of another type.
nlohmann::ordered_json to_json(const Value& value);
std::optional<Value> value_from_json(ValueType type, const nlohmann::ordered_json& json);

/// One of the two compared configs.
struct DiffSide {
  const JobConfig& config;
  std::string title = {};            ///< the title of its column, e.g. the file's name
  const Origins* origins = nullptr;  ///< if set, values given under a former spelling show that spelling
};

/// A line of titles and a line per option whose value differs; empty if none does. Ignores job.config_file.
std::string diff_configs(const Schema& schema, const DiffSide& a, const DiffSide& b);

/// An option whose value differs from an earlier config written by dump_json.
struct ChangedOption {
  std::string key;
  std::string words;  ///< "training.seq_len = 128 (was 64)"
};

/// All changed options, except job.config_file and options that `before` does not contain.
std::vector<ChangedOption> changes_since(const Schema& schema, const nlohmann::ordered_json& before,
                                         const JobConfig& config);

}  // namespace titan
