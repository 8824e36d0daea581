// The JSON of a conversation's record: its fields in their order, and numbers that JSON does not have.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "file_source.h"

namespace titan {

/// The record's JSON, after repairs, with the fields in their order: templates print dictionaries and walk over them.
/// Of a line that is none, the problem is in `read`.
nlohmann::ordered_json parse_conversation(std::string_view line, RecordText& read);

/// Whether `value`, or one in it, is a number that is NaN, infinite or beyond double precision.
bool has_odd_number(const nlohmann::ordered_json& value);

/// Whether a template could print it: no number in it is odd, and no whole one is beyond 64 bits.
bool is_readable(const nlohmann::ordered_json& value);

/// True for null, "", [], {} and odd numbers. A table whose records have several forms fills the columns that a record
/// does not use with such values.
bool is_nothing(const nlohmann::ordered_json& value);

}  // namespace titan
