// The files of this project that the rules of this folder are held against.
#pragma once

#include <string>
#include <vector>

namespace titan {

struct SourceFile {
  std::string part;
  std::string shown;  ///< its path in the checkout
  std::string text;
};

/// Every file of every part: include/titan/<part>/… and src/<part>/….
std::vector<SourceFile> all_sources();

}  // namespace titan
