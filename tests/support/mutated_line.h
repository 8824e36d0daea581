// Lines of JSON with one to three random edits: cut, overwritten, repeated, nested, with numbers and bytes that do not
// belong there. For the tests of what other ranks say.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace titan {

inline std::string mutated(std::string line, std::mt19937& random) {
  static const std::vector<std::string> words{"-1",
                                              "0",
                                              "1",
                                              "255",
                                              "9223372036854775807",
                                              "18446744073709551616",
                                              "1e300",
                                              "null",
                                              "\"\"",
                                              "[]",
                                              "{}",
                                              "[[[[[[[[",
                                              "true",
                                              "\"x\"",
                                              "\\u0000",
                                              "\xff",
                                              ",",
                                              "}"};
  const auto below = [&](size_t end) { return random() % std::max<size_t>(1, end); };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t at = below(line.size()), length = below(8);
    switch (below(6)) {
      case 0:
        line.resize(at);
        break;
      case 1:
        line.insert(at, words[below(words.size())]);
        break;
      case 2:
        line.replace(at, length, words[below(words.size())]);
        break;
      case 3:
        line.insert(at, line.substr(below(line.size()), below(40)));
        break;
      case 4:
        line.insert(at, 1 + below(100000), "[{\""[below(3)]);
        break;
      default:
        line.insert(at, 1, static_cast<char>(below(256)));
    }
  }
  return line;
}

}  // namespace titan
