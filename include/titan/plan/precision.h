// Sizes and names of the dtypes and float8 recipes that a plan distinguishes.
#pragma once

#include <cstdint>
#include <string_view>

#include "titan/config/choices.h"

namespace titan {

int64_t size_of(ElementType type);
std::string_view name(ElementType type);
std::string_view name(Float8Recipe recipe);
}  // namespace titan
