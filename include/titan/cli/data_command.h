// `titan_train data tokenize|stats|peek`: reads the command line and hands over to data/tokenize.h and data/inspect.h.
// Its options are its own, not the schema's: a corpus is made ready before there is a job. Knows no tensors.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace titan {

/// The first words that run_data_command knows.
std::vector<std::string> data_command_words();

/// `arguments`: what follows the word "data". Results go to `out`. Throws Error: bad_config for a wrong command line,
/// bad_data for wrong files, storage for an output that cannot be written.
void run_data_command(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace titan
