// Values of Arrow's arrays as text and as JSON.
#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace titan {

/// A value that its column's type does not allow: the row is a bad record. `column` is the path to it.
struct BadValue {
  std::string column;
  std::string problem;  ///< as the end of "its value in this row "
};

/// Whether values of this type are JSON in a text (the type arrow.json, Parquet's logical type JSON).
bool is_json_type(const arrow::DataType& type);

/// Whether values of this type are text: strings of any width, also behind a dictionary or in an extension type, or
/// JSON, which may hold one.
bool is_text_type(const arrow::DataType& type);

/// The text at `row` of an array of a text type, as it is stored; false if it is null.
bool read_text(const arrow::Array& array, int64_t row, std::string& text);

/// Appends `text` in quotes.
void append_json_text(std::string_view text, std::string& json);

/// Appends the value at `row` as JSON, as Python's json writes what pyarrow gives. What JSON does not have: NaN and
/// infinities as Python writes them, dates and decimals as text in Arrow's form, bytes as an object with their number,
/// since nothing reads them. Throws BadValue for a value that is to be JSON and is not, and std::runtime_error.
void append_json(const arrow::Array& array, int64_t row, std::string& json);

}  // namespace titan
