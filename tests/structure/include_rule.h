// The include rule of docs/architecture.md as a function over the text of one file.
// Apart from the test that walks the sources, so that the rule itself is tested on texts that break it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// The parts, lowest first; a part includes itself and those before it.
const std::vector<std::string>& parts_lowest_first();

/// What a file of `part` includes and must not, one sentence each: "text/x.cpp:3: text may not include ops
/// (titan/ops/y.h)". `file` is only shown. `text` is the file's content.
std::vector<std::string> include_violations(std::string_view part, std::string_view file, std::string_view text);

}  // namespace titan
