// Checks that a text is one JSON value before it is copied into a record.
#pragma once

#include <cstddef>
#include <string_view>

namespace titan {

/// Whether `text` is a single JSON value; else `failed_at` is the byte where it is not. What the reader of records
/// accepts or mends is accepted: NaN and infinities as Python writes them, numbers of any size, escapes of single
/// surrogates, malformed UTF-8.
bool is_json_value(std::string_view text, size_t& failed_at);

}  // namespace titan
