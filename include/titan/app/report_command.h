// `titan_train report`: one page out of the folders of one run or several.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace titan {

/// `arguments`: what follows the word. Throws Error(bad_config) for a command line that makes no sense, Error(bad_data)
/// for a folder that holds no run, Error(storage) for a page that cannot be written.
void run_report_command(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace titan
