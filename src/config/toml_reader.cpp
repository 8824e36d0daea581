#include "given.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace titan::detail {
namespace {

class Flattener {
 public:
  Flattener(std::string name, TomlDocument& document) : name_(std::move(name)), document_(document) {}

  void walk(const toml::table& table, const std::string& path) {
    for (auto&& [key, node] : table) {
      std::string full = path.empty() ? std::string(key.str()) : path + "." + std::string(key.str());
      if (const toml::table* child = node.as_table()) {
        document_.tables.push_back({full, place(key.source())});
        walk(*child, full);
      } else {
        document_.entries.push_back(entry(full, key, node));
      }
    }
  }

 private:
  Place place(const toml::source_region& region) const {
    return {Place::Kind::file, name_, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
  }

  TomlEntry entry(const std::string& full, const toml::key& key, const toml::node& node) {
    TomlEntry entry{full, place(key.source()), place(node.source()), {}, {}};
    if (const toml::array* array = node.as_array()) {
      entry.value = list(*array, full, entry.unsupported);
    } else {
      entry.value = scalar(node, entry.unsupported);
    }
    return entry;
  }

  static Value scalar(const toml::node& node, std::string& unsupported) {
    if (const auto* value = node.as_boolean()) return Value(value->get());
    if (const auto* value = node.as_integer()) return Value(value->get());
    if (const auto* value = node.as_floating_point()) return Value(value->get());
    if (const auto* value = node.as_string()) return Value(value->get());
    unsupported = node.is_array() ? "an array" : node.is_table() ? "a table" : "a date or time";
    return {};
  }

  /// Floats and integers beside them.
  static std::vector<double> numbers(const toml::array& array) {
    std::vector<double> values;
    for (const toml::node& element : array) values.push_back(*element.value<double>());
    return values;
  }

  template <class T>
  static std::vector<T> gather(const toml::array& array) {
    std::vector<T> values;
    for (const toml::node& element : array) values.push_back(*element.value_exact<T>());
    return values;
  }

  Value list(const toml::array& array, const std::string& full, std::string& unsupported) {
    if (array.empty() || array.is_homogeneous<std::string>()) return Value(gather<std::string>(array));
    if (array.is_homogeneous<int64_t>()) return Value(gather<int64_t>(array));
    const bool all_numbers =
        std::all_of(array.begin(), array.end(), [](const toml::node& node) { return node.is_number(); });
    if (all_numbers) return Value(numbers(array));
    if (array.is_array_of_tables()) return Value(records(array, full));
    std::vector<std::vector<std::string>> rows;
    for (const toml::node& element : array) {
      const toml::array* row = element.as_array();
      if (row == nullptr || !(row->empty() || row->is_homogeneous<std::string>())) {
        unsupported = "an array of other things";
        return {};
      }
      rows.push_back(gather<std::string>(*row));
    }
    return Value(rows);
  }

  std::vector<Record> records(const toml::array& array, const std::string& full) {
    std::vector<Record> records;
    for (size_t i = 0; i < array.size(); ++i) {
      Record record;
      std::string element = fmt::format("{}[{}]", full, i);
      document_.inside[element] = place(array[i].source());
      for (auto&& [key, node] : *array[i].as_table()) {
        std::string unsupported;
        std::string name(key.str());
        record.fields[name] = scalar(node, unsupported);
        document_.inside[fmt::format("{}.{}", element, name)] = place(key.source());
      }
      records.push_back(std::move(record));
    }
    return records;
  }

  std::string name_;
  TomlDocument& document_;
};

/// toml++ limits neither the depth of dotted keys, which it parses recursively, nor sizes. Brackets and dots may each
/// nest up to this depth.
constexpr int kDeepest = 32;

/// The position after the string that starts at `begin`; the parser reports unterminated strings.
size_t end_of_string(std::string_view text, size_t begin) {
  const char quote = text[begin];
  const std::string_view rest = text.substr(begin);
  const bool is_long = rest.starts_with("\"\"\"") || rest.starts_with("'''");
  const std::string_view closing = rest.substr(0, is_long ? 3 : 1);
  size_t i = begin + closing.size();
  while (i < text.size() && !text.substr(i).starts_with(closing)) {
    if (!is_long && text[i] == '\n') return i;
    i += text[i] == '\\' && quote == '"' ? 2 : 1;
  }
  return std::min(text.size(), i + closing.size());
}

/// The position where nesting exceeds kDeepest; npos: none.
size_t too_deep_at(std::string_view text) {
  int brackets = 0, dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = end_of_string(text, i);
      continue;
    }
    if (c == '#') i = std::min(text.find('\n', i), text.size() - 1);
    if (c == '[' || c == '{') ++brackets;
    if (c == ']' || c == '}') brackets = std::max(0, brackets - 1);
    dots = c == '.' ? dots + 1 : std::string_view("[]{}=,#\n").find(c) != std::string_view::npos ? 0 : dots;
    if (brackets > kDeepest || dots > kDeepest) return i;
    ++i;
  }
  return std::string_view::npos;
}

Problem not_valid(const Place& place, const std::string& what, const std::string& hint = {}) {
  const std::string remedy = "correct this line; the rest is checked after that";
  return {place, {}, "not valid TOML: " + what, hint.empty() ? remedy : hint, Severity::error};
}

/// The value in line `number` of `text`, without spaces and comment; empty: the line has no single word after a '='.
std::string_view bare_word_of(std::string_view text, int64_t number) {
  for (int64_t line = 1; line < number; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::string_view line = text.substr(0, text.find('\n'));
  line = line.substr(0, line.find('#'));
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return {};
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = line.find_first_not_of(kSpace, equals + 1);
  if (begin == std::string_view::npos) return {};
  line = line.substr(begin, line.find_last_not_of(kSpace) + 1 - begin);
  const auto is_plain = [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return std::isalnum(byte) != 0 || std::string_view("_-./~:@").find(letter) != std::string_view::npos;
  };
  return std::all_of(line.begin(), line.end(), is_plain) ? line : std::string_view();
}

/// What to write for a value that another language would read; empty: the value is none.
std::string hint_for(std::string_view word) {
  if (word == "True" || word == "False") return fmt::format("write {}", word == "True" ? "true" : "false");
  for (const std::string_view none : {"None", "none", "null", "nil"}) {
    if (word == none) return fmt::format("TOML has no {}: leave the line out", none);
  }
  const bool is_value = word == "true" || word == "false" || word == "inf" || word == "nan";
  const bool is_text = !word.empty() && !is_value &&
                       (std::isalpha(static_cast<unsigned char>(word[0])) != 0 ||
                        std::string_view("./~_").find(word[0]) != std::string_view::npos);
  return is_text ? fmt::format("write text in quotes: \"{}\"", word) : std::string();
}

/// Rejects text that the parser cannot handle safely; nothing for other text.
std::optional<Problem> refused_text(std::string_view text, const std::string& name) {
  if (text.size() > kMostTomlBytes) {
    return Problem{{Place::Kind::file, name, 0, 0},
                   {},
                   fmt::format("has {} bytes: this is not a config", text.size()),
                   fmt::format("give a TOML file of at most {} bytes", kMostTomlBytes),
                   Severity::error};
  }
  const size_t at = too_deep_at(text);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;
  const Place place{Place::Kind::file, name, static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
                    static_cast<int>(at - line_begin) + 1};
  return not_valid(place, fmt::format("values or keys are nested more than {} levels deep", kDeepest));
}

bool comes_before(const Place& a, const Place& b) { return a.line != b.line ? a.line < b.line : a.column < b.column; }

}  // namespace

TomlDocument read_toml(std::string_view text, const std::string& name) {
  TomlDocument document;
  document.syntax_error = refused_text(text, name);
  if (document.syntax_error) return document;
  toml::parse_result parsed = toml::parse(text, std::string_view(name));
  if (parsed.failed()) {
    const toml::parse_error& error = parsed.error();
    Place place{Place::Kind::file, name, static_cast<int>(error.source().begin.line),
                static_cast<int>(error.source().begin.column)};
    const std::string what(error.description());
    const bool is_value = what.find("redefine") == std::string::npos;
    document.syntax_error = not_valid(place, what, is_value ? hint_for(bare_word_of(text, place.line)) : "");
    return document;
  }
  Flattener(name, document).walk(parsed.table(), {});
  // toml++ sorts keys by name; problems are reported in the order of the file, as a reader meets them.
  std::stable_sort(document.entries.begin(), document.entries.end(),
                   [](const auto& a, const auto& b) { return comes_before(a.key_place, b.key_place); });
  std::stable_sort(document.tables.begin(), document.tables.end(),
                   [](const auto& a, const auto& b) { return comes_before(a.place, b.place); });
  return document;
}

}  // namespace titan::detail
