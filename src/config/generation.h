// Which generation a config belongs to, from what was given. Private to config.
// Decided once per load, before any default is filled in, since the defaults depend on it.
#pragma once

#include <string>
#include <vector>

#include "given.h"

namespace titan::detail {

struct GenerationChoice {
  Generation generation;
  std::string reason;  ///< in words, with the place that decided
};

/// job.generation when it is given; else December 2024 when the file has a spelling that only December 2024 knew and
/// none that came later. A file with both is a problem that names both places.
GenerationChoice decide_generation(const std::vector<Given>& given, std::vector<Problem>& problems);

}  // namespace titan::detail
