#include "values.h"

#include <arrow/api.h>
#include <arrow/extension_type.h>
#include <arrow/util/float16.h>
#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "json_value.h"

namespace titan {
namespace {

template <class Array>
std::string_view view_at(const arrow::Array& array, int64_t row) {
  return static_cast<const Array&>(array).GetView(row);
}

/// Extension types whose values are not those of their storage; all others are read by it, as by pyarrow.
constexpr std::string_view kJson = "arrow.json", kBool = "arrow.bool8", kUuid = "arrow.uuid";

/// The array that holds the values, and the row in it: behind dictionaries and extension types.
struct Place {
  std::shared_ptr<arrow::Array> owned;
  const arrow::Array* array;
  int64_t row;
  std::string extension = {};  // the name of the type

  bool is_null() const { return array->IsNull(row); }
};

Place storage_of(const arrow::Array& array, int64_t row) {
  Place place{.owned = nullptr, .array = &array, .row = row};
  while (!place.is_null()) {
    if (place.array->type_id() == arrow::Type::DICTIONARY) {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(*place.array);
      place.row = dictionary.GetValueIndex(place.row);
      place.owned = dictionary.dictionary();
      if (place.row < 0 || place.row >= place.owned->length()) throw std::runtime_error("its dictionary is damaged");
    } else if (place.array->type_id() == arrow::Type::EXTENSION) {
      place.extension = static_cast<const arrow::ExtensionType&>(*place.array->type()).extension_name();
      place.owned = static_cast<const arrow::ExtensionArray&>(*place.array).storage();
    } else {
      break;
    }
    place.array = place.owned.get();
  }
  return place;
}

std::string_view bytes_at(const Place& place) {
  switch (place.array->type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return view_at<arrow::BinaryArray>(*place.array, place.row);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return view_at<arrow::LargeBinaryArray>(*place.array, place.row);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return view_at<arrow::BinaryViewArray>(*place.array, place.row);
    default:
      return view_at<arrow::FixedSizeBinaryArray>(*place.array, place.row);
  }
}

/// As Python's json writes it: templates print numbers. NaN and infinities are known to the reader of records. A float
/// of fewer bits is the same number as a double, with the digits of that.
void append_number(double number, std::string& json) {
  if (!std::isfinite(number)) {
    json += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
    return;
  }
  const std::string digits = fmt::format("{}", number);
  json += digits;
  if (digits.find_first_of(".e") == digits.npos) json += ".0";
}

/// Appends a value that is JSON already.
void append_json_value(std::string_view value, std::string& json) {
  size_t failed_at = 0;
  // Text that is no JSON would change the record around it.
  if (!is_json_value(value, failed_at)) throw BadValue{{}, fmt::format("is not JSON from its byte {} on", failed_at)};
  json += value;
}

/// The usual form of the 16 bytes, as Python's UUID is printed.
void append_uuid(std::string_view bytes, std::string& json) {
  json += '"';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) json += '-';
    json += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(bytes[i])));
  }
  json += '"';
}

template <class Array>
void append_values(const Array& array, int64_t row, std::string& json) {
  json += '[';
  for (int64_t i = 0; i < array.value_length(row); ++i) {
    if (i > 0) json += ',';
    append_json(*array.values(), array.value_offset(row) + i, json);
  }
  json += ']';
}

void append_object(const arrow::StructArray& array, int64_t row, std::string& json) {
  json += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    if (i > 0) json += ',';
    const std::string& name = array.struct_type()->field(i)->name();
    append_json_text(name, json);
    json += ':';
    try {
      append_json(*array.field(i), row, json);
    } catch (BadValue& bad) {
      bad.column = bad.column.empty() ? name : name + "." + bad.column;
      throw;
    }
  }
  json += '}';
}

/// A map with texts as keys is an object; another one is a list of pairs, as in Python.
void append_map(const arrow::MapArray& array, int64_t row, std::string& json) {
  const arrow::DataType& key = *array.map_type()->key_type();
  const bool is_object = is_text_type(key) && !is_json_type(key);
  json += is_object ? '{' : '[';
  for (int64_t i = 0; i < array.value_length(row); ++i) {
    const int64_t at = array.value_offset(row) + i;
    if (i > 0) json += ',';
    if (!is_object) json += '[';
    append_json(*array.keys(), at, json);
    json += is_object ? ':' : ',';
    append_json(*array.items(), at, json);
    if (!is_object) json += ']';
  }
  json += is_object ? '}' : ']';
}

/// A number, a date or another value without parts.
void append_simple(const arrow::Array& array, int64_t row, std::string& json) {
  const arrow::Result<std::shared_ptr<arrow::Scalar>> scalar = array.GetScalar(row);
  if (!scalar.ok()) throw std::runtime_error(scalar.status().message());
  const std::string text = (*scalar)->ToString();
  if (arrow::is_integer(array.type_id())) {
    json += text;
  } else {
    append_json_text(text, json);
  }
}

}  // namespace

bool is_json_type(const arrow::DataType& type) {
  return type.id() == arrow::Type::EXTENSION &&
         static_cast<const arrow::ExtensionType&>(type).extension_name() == kJson;
}

bool is_text_type(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::DICTIONARY:
      return is_text_type(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::EXTENSION:
      return is_text_type(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default:
      return arrow::is_string(type.id()) || type.id() == arrow::Type::STRING_VIEW;
  }
}

bool read_text(const arrow::Array& array, int64_t row, std::string& text) {
  const Place place = storage_of(array, row);
  if (place.is_null()) return false;
  text = bytes_at(place);
  return true;
}

void append_json_text(std::string_view text, std::string& json) {
  json += '"';
  size_t copied = 0;  // what needs no escape is copied in runs: most texts are one
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) continue;
    json += text.substr(copied, at - copied);
    copied = at + 1;
    json += '\\';
    if (c == '"' || c == '\\') {
      json += c;
    } else {
      json += fmt::format("u{:04x}", static_cast<unsigned>(c));
    }
  }
  json += text.substr(copied);
  json += '"';
}

void append_json(const arrow::Array& array, int64_t row, std::string& json) {
  const Place place = storage_of(array, row);
  const arrow::Array& values = *place.array;
  if (place.is_null()) return void(json += "null");
  if (place.extension == kJson) return append_json_value(bytes_at(place), json);
  if (place.extension == kUuid) return append_uuid(bytes_at(place), json);
  if (place.extension == kBool) {
    return void(json += static_cast<const arrow::Int8Array&>(values).Value(place.row) != 0 ? "true" : "false");
  }
  switch (values.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      return append_json_text(bytes_at(place), json);
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY:
      return void(json += fmt::format("{{\"bytes\":{}}}", bytes_at(place).size()));
    case arrow::Type::BOOL:
      return void(json += static_cast<const arrow::BooleanArray&>(values).Value(place.row) ? "true" : "false");
    case arrow::Type::HALF_FLOAT: {
      const uint16_t bits = static_cast<const arrow::HalfFloatArray&>(values).Value(place.row);
      return append_number(arrow::util::Float16::FromBits(bits).ToDouble(), json);
    }
    case arrow::Type::FLOAT:
      return append_number(static_cast<const arrow::FloatArray&>(values).Value(place.row), json);
    case arrow::Type::DOUBLE:
      return append_number(static_cast<const arrow::DoubleArray&>(values).Value(place.row), json);
    case arrow::Type::INT64:
      return void(json += fmt::format("{}", static_cast<const arrow::Int64Array&>(values).Value(place.row)));
    case arrow::Type::INT32:
      return void(json += fmt::format("{}", static_cast<const arrow::Int32Array&>(values).Value(place.row)));
    case arrow::Type::STRUCT:
      return append_object(static_cast<const arrow::StructArray&>(values), place.row, json);
    case arrow::Type::LIST:
      return append_values(static_cast<const arrow::ListArray&>(values), place.row, json);
    case arrow::Type::LARGE_LIST:
      return append_values(static_cast<const arrow::LargeListArray&>(values), place.row, json);
    case arrow::Type::LIST_VIEW:
      return append_values(static_cast<const arrow::ListViewArray&>(values), place.row, json);
    case arrow::Type::LARGE_LIST_VIEW:
      return append_values(static_cast<const arrow::LargeListViewArray&>(values), place.row, json);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_values(static_cast<const arrow::FixedSizeListArray&>(values), place.row, json);
    case arrow::Type::MAP:
      return append_map(static_cast<const arrow::MapArray&>(values), place.row, json);
    default:
      return append_simple(values, place.row, json);
  }
}

}  // namespace titan
