// `titan_train schedule`: shows a pipeline schedule, its bubble and what its ranks keep, as text, picture and CSV.
// Reads the command line and hands over to the part schedule. Its options are its own: a schedule needs no job.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "titan/schedule/picture.h"

namespace titan {

/// The words that may follow `schedule`.
std::vector<std::string> schedule_command_words();

/// `arguments`: what follows the word "schedule". Shows on `out`, for a terminal as `terminal` says, and writes the
/// files that are asked for. Throws Error(bad_config) for a wrong command line, an illegal shape or a table that cannot
/// run, with all problems at once.
void run_schedule_command(const std::vector<std::string>& arguments, const GridOptions& terminal, std::ostream& out);

}  // namespace titan
