// `titan_train profile summarize`: what a trace says, as text.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace titan {

/// `arguments`: what follows the word. Throws Error(bad_config) for a command line that makes no sense, Error(bad_data)
/// for a file that is no trace.
void run_profile_command(const std::vector<std::string>& arguments, std::ostream& out);
std::vector<std::string> profile_command_words();

}  // namespace titan
