// titan_train as a function, with every command: what libtitan.so is to `main`, and what tests call to see what a shell
// would.
#pragma once

#include <string>
#include <vector>

namespace titan {

/// Runs the program with these words, the program's own name left out, and returns the exit code; nothing is thrown.
int run_program(const std::vector<std::string>& words);

}  // namespace titan
