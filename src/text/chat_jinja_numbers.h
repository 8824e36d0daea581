// Numbers of Jinja's filters: rounded, or read from text as Python reads them. Owned by data.
#pragma once

#include <cstdint>
#include <string_view>

#include "chat_jinja_value.h"

namespace titan::jinja {

/// `how`: "common" (half to even), "ceil" or "floor". Throws TemplateError.
Value rounded(const Value& value, int64_t digits, std::string_view how);

/// Python's int(value), or `otherwise` where Python raises an error. Throws TemplateError beyond 64 bits.
Value whole_of(const Value& value, const Value& otherwise);

/// Python's float(value), or `otherwise` where Python raises an error.
Value real_of(const Value& value, const Value& otherwise);

}  // namespace titan::jinja
