// The value of one option of any type, between its text and the typed field. Pure functions, without knowledge of the
// schema or of files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace titan {

enum class ValueType { boolean, integer, number, text, text_list, integer_list, number_list, text_table, records };

struct Record;

/// monostate is "none": the value of an optional option that is not set.
using Value =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                 std::vector<double>, std::vector<std::vector<std::string>>, std::vector<Record>>;

/// One table of an array of tables, such as an element of `[[optimizer.param_groups]]`.
struct Record {
  std::map<std::string, Value> fields;
  friend bool operator==(const Record& a, const Record& b) { return a.fields == b.fields; }
};

/// "an integer", "a list of strings": for messages.
std::string describe(ValueType type);

/// INT, FLOAT, TEXT …: for help and tables.
std::string short_name(ValueType type);

/// The value in TOML syntax; none as "none". A float keeps its shortest exact spelling ("0.0003", "1e-8", "1.0").
std::string to_toml(const Value& value);

/// Parses a command-line word as `type`; nothing if it is not valid. A list is one comma-separated word.
std::optional<Value> parse_word(ValueType type, std::string_view word);

/// Conversions that a TOML file may rely on: an integer for a number, also in a list, and one comma-separated string
/// for a list of strings. Nothing if the value has another type.
std::optional<Value> convert(ValueType type, const Value& value);

}  // namespace titan
