#include "given.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "titan/base/text.h"

namespace titan::detail {
namespace {

std::string did_you_mean(const Schema& schema, const std::vector<std::string>& close, const std::string& otherwise) {
  return close.empty() ? otherwise : fmt::format("did you mean {}?", schema.display_name(close.front()));
}

std::string allowed_text(const Option& option) {
  std::string allowed = option.allowed();
  return allowed.empty() ? "give it " + describe(option.type) : "allowed: " + allowed;
}

}  // namespace

void GivenReader::problem(const Place& place, const std::string& key, std::string what, std::string remedy) {
  problems_.push_back({place, key, std::move(what), std::move(remedy), Severity::error});
}

bool GivenReader::find(const std::string& key, Given& given) const {
  given.option = schema_.find(key);
  if (given.option == nullptr) given.alias = schema_.find_alias(key);
  if (given.alias != nullptr) given.option = schema_.find(given.alias->target);
  return given.option != nullptr;
}

void GivenReader::read(const TomlDocument& document) {
  std::set<std::string> unknown_sections;
  for (const TomlTable& table : document.tables) {
    if (schema_.is_section(table.name)) continue;
    size_t dot = table.name.rfind('.');
    bool parent_told = dot != std::string::npos && unknown_sections.count(table.name.substr(0, dot)) > 0;
    unknown_sections.insert(table.name);
    if (parent_told) continue;
    std::vector<std::string> close = schema_.suggest_section(table.name);
    problem(table.place, close.empty() ? table.name : close.front(), fmt::format("[{}] is no section", table.name),
            close.empty() ? "see `titan_train config docs`" : fmt::format("did you mean [{}]?", close.front()));
  }
  for (const TomlEntry& entry : document.entries) {
    size_t dot = entry.key.rfind('.');
    if (dot != std::string::npos && unknown_sections.count(entry.key.substr(0, dot)) > 0) continue;
    Given given;
    given.level = Level::file;
    given.key_place = entry.key_place;
    given.value_place = entry.value_place;
    if (!find(entry.key, given)) {
      unknown_key(entry);
    } else if (!entry.unsupported.empty()) {
      wrong_type(given, entry.unsupported);
    } else {
      add(std::move(given), entry.value, to_toml(entry.value), document.inside);
    }
  }
}

void GivenReader::unknown_key(const TomlEntry& entry) {
  if (schema_.is_section(entry.key)) {
    return problem(entry.key_place, entry.key, fmt::format("{} is a section, not an option", entry.key),
                   fmt::format("write [{}] and its options below", entry.key));
  }
  const std::vector<std::string> close = schema_.suggest(entry.key, 1);
  const std::string meant = close.empty() ? entry.key : schema_.current_key(close.front());
  problem(entry.key_place, meant, fmt::format("{} is no option", entry.key),
          did_you_mean(schema_, close, "see `titan_train config docs`"));
}

void GivenReader::read(const CommandLine& command_line) {
  for (const CommandLineWord& word : command_line.words) {
    Given given;
    given.level = Level::command_line;
    given.key_place = given.value_place = word.place;
    find(word.key, given);
    bool former = given.alias != nullptr && given.alias->convert;
    ValueType type = former ? given.alias->type : given.option->type;
    std::string quoted = "\"" + word.value + "\"";
    if (given.option->optional && !former && word.value == "none") {
      given_.push_back(std::move(given));
    } else if (std::optional<Value> value = parse_word(type, word.value)) {
      add(std::move(given), *value, quoted, {});
    } else if (type == ValueType::records) {
      problem(given.key_place, given.option->key, fmt::format("{} cannot be given in one word", given.option->key),
              fmt::format("write [[{}]] tables in the config file", given.option->key));
    } else {
      wrong_type(given, quoted);
    }
  }
}

void GivenReader::wrong_type(const Given& given, const std::string& found) {
  ValueType type = given.alias != nullptr && given.alias->convert ? given.alias->type : given.option->type;
  problem(given.value_place, given.option->key,
          fmt::format("{} = {} is not {}", given.spelling(), found, describe(type)),
          given.alias == nullptr ? allowed_text(*given.option) : "give it " + describe(type));
}

void GivenReader::add(Given given, const Value& value, const std::string& found,
                      const std::map<std::string, Place>& inside) {
  const Option& option = *given.option;
  if (given.alias != nullptr && given.alias->convert) {
    std::optional<Value> converted = convert(given.alias->type, value);
    if (!converted) return wrong_type(given, found);
    const std::vector<std::string>& choices = given.alias->choices;
    const auto* word = std::get_if<std::string>(&*converted);
    if (word != nullptr && std::find(choices.begin(), choices.end(), *word) == choices.end()) {
      return problem(given.value_place, option.key, fmt::format("{} = {} is no such value", given.spelling(), found),
                     "allowed: " + join(choices, ", "));
    }
    given.value = *converted;
  } else {
    std::optional<Value> accepted = option.accept(value);
    if (!accepted) return wrong_type(given, found);
    given.value = option.canonical(*accepted);
    if (!fill_records(given, given.value, inside)) return;
    if (std::optional<std::string> wrong = option.violation(given.value)) {
      return problem(given.value_place, option.key, *wrong, allowed_text(option));
    }
  }
  given_.push_back(std::move(given));
}

bool GivenReader::fill_records(const Given& given, Value& value, const std::map<std::string, Place>& inside) {
  auto* records = std::get_if<std::vector<Record>>(&value);
  if (records == nullptr) return true;
  bool good = true;
  for (size_t i = 0; i < records->size(); ++i) {
    std::string element = fmt::format("{}[{}]", given.option->key, i);
    good = fill_record(*given.option, (*records)[i], element, inside) && good;
  }
  return good;
}

bool GivenReader::fill_record(const Option& option, Record& record, const std::string& element,
                              const std::map<std::string, Place>& inside) {
  size_t before = problems_.size();
  std::vector<std::string> names;
  for (const Option& field : option.fields) names.push_back(field.name());
  for (const auto& [name, value] : record.fields) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::vector<std::string> close = nearest(name, names, 1);
    problem(inside.at(fmt::format("{}.{}", element, name)), option.key,
            fmt::format("{}.{} is no option", option.key, name),
            close.empty() ? "its options are " + join(names, ", ") : fmt::format("did you mean {}?", close.front()));
  }
  for (const Option& field : option.fields) {
    auto found = record.fields.find(field.name());
    if (found == record.fields.end()) {
      bool required = std::holds_alternative<std::monostate>(field.default_2026);
      if (required) problem(inside.at(element), option.key, fmt::format("{} is missing", field.key), field.description);
      record.fields[field.name()] = field.default_2026;
      continue;
    }
    const Place& place = inside.at(element + "." + field.name());
    std::optional<Value> value = field.accept(found->second);
    if (!value) {
      problem(place, option.key, fmt::format("{} is not {}", field.key, describe(field.type)), field.description);
    } else if (std::optional<std::string> wrong = field.violation(*value)) {
      problem(place, option.key, *wrong, allowed_text(field));
    } else {
      found->second = *value;
    }
  }
  return problems_.size() == before;
}

}  // namespace titan::detail
