// Where the files of this project lie that tests read.
#pragma once

#include <filesystem>

namespace titan {

/// The folder of the checkout that the tests were built from.
std::filesystem::path checkout();

}  // namespace titan
