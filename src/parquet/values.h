// Values of Arrow's arrays as text and as JSON.
#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>

namespace titan {

/// Whether values of this type are text: strings of any width, also behind a dictionary or in an extension type.
bool is_text_type(const arrow::DataType& type);

/// The text at `row` of an array of a text type; false if it is null.
bool read_text(const arrow::Array& array, int64_t row, std::string& text);

/// Appends the value at `row` as JSON. What JSON does not have: NaN and infinities as Python writes them, dates and
/// decimals as text, bytes as an object with their number, since nothing reads them. Throws std::runtime_error.
void append_json(const arrow::Array& array, int64_t row, std::string& json);

}  // namespace titan
