// The types and functions that a checkpoint's pickles may name. A name outside of this list is refused, so the list is
// what a stranger's pickle can ask for; none of them is ever called.
#pragma once

#include <string_view>

namespace titan {

/// `name`: "module name".
bool is_known_name(std::string_view name);

}  // namespace titan
