#include "titan/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "titan/base/text.h"

namespace titan {
namespace {

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (char letter : text) {
    auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      quoted += '\\';
      quoted += letter;
    } else if (letter == '\n') {
      quoted += "\\n";
    } else if (letter == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

/// The shortest text that reads back as the same double and that TOML parses as a float.
std::string float_text(double number) {
  std::string text = fmt::format("{}", number);
  bool is_float = text.find_first_of(".einf") != std::string::npos;
  return is_float ? text : text + ".0";
}

template <class T, class Write>
std::string array_text(const std::vector<T>& elements, Write write) {
  std::vector<std::string> words;
  words.reserve(elements.size());
  for (const T& element : elements) words.push_back(write(element));
  return "[" + join(words, ", ") + "]";
}

std::string record_text(const Record& record) {
  std::vector<std::string> words;
  for (const auto& [key, value] : record.fields) words.push_back(key + " = " + to_toml(value));
  return "{ " + join(words, ", ") + " }";
}

struct TomlWriter {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return float_text(value); }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const std::vector<std::string>& list) const {
    return array_text(list, [](const std::string& word) { return quote(word); });
  }
  std::string operator()(const std::vector<int64_t>& list) const {
    return array_text(list, [](int64_t number) { return fmt::format("{}", number); });
  }
  std::string operator()(const std::vector<double>& list) const { return array_text(list, float_text); }
  std::string operator()(const std::vector<std::vector<std::string>>& table) const { return array_text(table, *this); }
  std::string operator()(const std::vector<Record>& records) const { return array_text(records, record_text); }
};

template <class Number>
std::optional<Value> parse_number(std::string_view word) {
  if (!word.empty() && word.front() == '+') word.remove_prefix(1);
  Number number{};
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return Value(number);
}

/// Removes underscores between digits, which TOML allows too.
std::string without_digit_separators(std::string_view word) {
  std::string plain;
  for (size_t i = 0; i < word.size(); ++i) {
    bool between_digits = i > 0 && i + 1 < word.size() && std::isdigit(static_cast<unsigned char>(word[i - 1])) &&
                          std::isdigit(static_cast<unsigned char>(word[i + 1]));
    if (word[i] != '_' || !between_digits) plain += word[i];
  }
  return plain;
}

std::vector<std::string> comma_list(std::string_view word) {
  std::vector<std::string> parts;
  if (trim(word).empty()) return parts;
  for (const std::string& part : split(word, ',')) parts.push_back(trim(part));
  return parts;
}

std::optional<Value> finite(std::optional<Value> number) {
  return number && std::isfinite(std::get<double>(*number)) ? number : std::nullopt;
}

template <class Number>
std::optional<Value> parse_numbers(std::string_view word) {
  std::vector<Number> numbers;
  for (const std::string& part : comma_list(word)) {
    std::optional<Value> number = parse_number<Number>(without_digit_separators(part));
    if constexpr (std::is_same_v<Number, double>) number = finite(number);
    if (!number) return std::nullopt;
    numbers.push_back(std::get<Number>(*number));
  }
  return Value(numbers);
}

std::optional<Value> numbers_of(const Value& value) {
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    return Value(std::vector<double>(integers->begin(), integers->end()));
  }
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  if (!numbers) return std::nullopt;
  const bool all_finite =
      std::all_of(numbers->begin(), numbers->end(), [](double number) { return std::isfinite(number); });
  return all_finite ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string describe(ValueType type) {
  switch (type) {
    case ValueType::boolean:
      return "true or false";
    case ValueType::integer:
      return "an integer";
    case ValueType::number:
      return "a number";
    case ValueType::text:
      return "a string";
    case ValueType::text_list:
      return "a list of strings";
    case ValueType::integer_list:
      return "a list of integers";
    case ValueType::number_list:
      return "a list of numbers";
    case ValueType::text_table:
      return "a list of lists of strings";
    case ValueType::records:
      return "an array of tables";
  }
  return {};
}

std::string short_name(ValueType type) {
  switch (type) {
    case ValueType::boolean:
      return "BOOL";
    case ValueType::integer:
      return "INT";
    case ValueType::number:
      return "FLOAT";
    case ValueType::text:
      return "TEXT";
    case ValueType::text_list:
      return "TEXT,…";
    case ValueType::integer_list:
      return "INT,…";
    case ValueType::number_list:
      return "FLOAT,…";
    case ValueType::text_table:
      return "LISTS";
    case ValueType::records:
      return "TABLES";
  }
  return {};
}

std::string to_toml(const Value& value) { return std::visit(TomlWriter{}, value); }

std::optional<Value> parse_word(ValueType type, std::string_view word) {
  switch (type) {
    case ValueType::boolean:
      if (to_lower(word) == "true") return Value(true);
      if (to_lower(word) == "false") return Value(false);
      return std::nullopt;
    case ValueType::integer:
      return parse_number<int64_t>(without_digit_separators(word));
    case ValueType::number:
      return finite(parse_number<double>(without_digit_separators(word)));
    case ValueType::text:
      return Value(std::string(word));
    case ValueType::text_list:
      return Value(comma_list(word));
    case ValueType::integer_list:
      return parse_numbers<int64_t>(word);
    case ValueType::number_list:
      return parse_numbers<double>(word);
    case ValueType::text_table: {
      std::vector<std::vector<std::string>> table;
      for (const std::string& row : split(word, ';')) table.push_back(comma_list(row));
      return Value(table);
    }
    case ValueType::records:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Value> convert(ValueType type, const Value& value) {
  const auto* strings = std::get_if<std::vector<std::string>>(&value);
  bool empty_array = strings != nullptr && strings->empty();
  switch (type) {
    case ValueType::boolean:
      return std::holds_alternative<bool>(value) ? std::optional(value) : std::nullopt;
    case ValueType::integer:
      return std::holds_alternative<int64_t>(value) ? std::optional(value) : std::nullopt;
    case ValueType::number:
      if (const auto* integer = std::get_if<int64_t>(&value)) return Value(static_cast<double>(*integer));
      if (const auto* number = std::get_if<double>(&value); number && std::isfinite(*number)) return value;
      return std::nullopt;
    case ValueType::text:
      return std::holds_alternative<std::string>(value) ? std::optional(value) : std::nullopt;
    case ValueType::text_list:
      if (const auto* text = std::get_if<std::string>(&value)) return Value(comma_list(*text));
      return strings ? std::optional(value) : std::nullopt;
    case ValueType::integer_list:
      if (empty_array) return Value(std::vector<int64_t>{});
      return std::holds_alternative<std::vector<int64_t>>(value) ? std::optional(value) : std::nullopt;
    case ValueType::number_list:
      return empty_array ? std::optional(Value(std::vector<double>{})) : numbers_of(value);
    case ValueType::text_table:
      if (empty_array) return Value(std::vector<std::vector<std::string>>{});
      return std::holds_alternative<std::vector<std::vector<std::string>>>(value) ? std::optional(value) : std::nullopt;
    case ValueType::records:
      if (empty_array) return Value(std::vector<Record>{});
      return std::holds_alternative<std::vector<Record>>(value) ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace titan
