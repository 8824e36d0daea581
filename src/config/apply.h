// From what was given to the values that hold: precedence, former spellings, doubles. Private to config.
// The step of loading between reading (given.h) and the typed config: it judges what options mean together with their
// availability, not whether their values are in range.
#pragma once

#include <string>
#include <vector>

#include "given.h"

namespace titan::detail {

/// Sets everything given, the command line over the file, and says in one line per former spelling what it is called
/// now.
void apply_given(const std::vector<Given>& given, Settings& settings, std::vector<Problem>& problems,
                 std::vector<std::string>& renamed);

/// Notes for options that were given and do nothing; problems for those that ask for something not offered here.
void judge_effects(const Schema& schema, const Settings& settings, const JobConfig& config,
                   std::vector<Problem>& problems, std::vector<std::string>& notes);

}  // namespace titan::detail
