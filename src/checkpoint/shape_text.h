#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace titan {

/// As messages show a shape: "[2, 3]".
inline std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace titan
