// Jinja's operators, tests, filters, methods and functions. Owned by data; knows no syntax and no macros.
#pragma once

#include <string_view>

#include "chat_jinja_value.h"

namespace titan::jinja {

/// An arithmetic operator or a comparison.
Value binary(Heap& heap, std::string_view sign, const Value& a, const Value& b);
Value negative(const Value& value);

bool test(Heap& heap, std::string_view name, const Value& value, const Items& arguments);
Value filter(Heap& heap, std::string_view name, const Value& value, const Items& arguments, const Named& named);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

/// Calls a method, or a function of Jinja's or of `transformers`.
Value call_built_in(Heap& heap, const Function& function, const Items& arguments, const Named& named);
bool is_global(std::string_view name);

}  // namespace titan::jinja
