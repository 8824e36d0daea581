// What check_model and the other checks say of a config.
#pragma once

#include <string>
#include <vector>

#include "job.h"

namespace titan {

inline std::string config_problems(const std::vector<std::string>& words, const std::string& toml = "") {
  const std::vector<ConfigCheck> checks{check_contradictions, check_model};
  return format_problems(load_config_text(Schema(), toml, "job.toml", words, checks).problems);
}

}  // namespace titan
