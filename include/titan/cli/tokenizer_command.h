// `titan_train tokenizer train|encode|decode|info`: reads the command line and hands over to data/tokenizer_tools.h.
// Its options are its own, not the schema's: a tokenizer is made before there is a job. Knows no tensors.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace titan {

/// The first words that run_tokenizer_command knows.
std::vector<std::string> tokenizer_command_words();

/// `arguments`: what follows the word "tokenizer". Text is read from the named files or from `in`; results go to `out`.
/// Throws Error: bad_config for a wrong command line, bad_data for wrong files.
void run_tokenizer_command(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out);

}  // namespace titan
