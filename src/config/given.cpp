#include "given.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <set>
#include <span>
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
    bool parent_reported = dot != std::string::npos && unknown_sections.count(table.name.substr(0, dot)) > 0;
    unknown_sections.insert(table.name);
    if (parent_reported) continue;
    if (const Option* option = schema_.find(table.name)) {
      const bool is_list = option->type == ValueType::records;
      problem(table.place, table.name,
              is_list ? fmt::format("[{0}] is one table, and {0} is a list of tables", table.name)
                      : fmt::format("{} is an option, not a section", table.name),
              is_list ? fmt::format("write [[{}]]", table.name)
                      : fmt::format("write {} = … below [{}]", option->name(), option->section));
      continue;
    }
    std::vector<std::string> close = schema_.suggest_section(table.name);
    problem(table.place, close.empty() ? table.name : close.front(), fmt::format("unknown section [{}]", table.name),
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
  problem(entry.key_place, meant, fmt::format("unknown option {}", entry.key),
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
    } else if ((type == ValueType::integer_list || type == ValueType::number_list) && word.value.starts_with('[') &&
               word.value.ends_with(']')) {
      std::string elements = word.value.substr(1, word.value.size() - 2);
      std::erase(elements, ' ');
      wrong_type(given, quoted, "in one word a list has commas and no brackets: " + elements);
    } else {
      wrong_type(given, quoted);
    }
  }
}

namespace {

/// What to give instead of a number that is not finite; empty: `found` is something else.
std::string instead_of_infinity(const Option& option, std::string_view found) {
  if (option.type != ValueType::number) return {};
  while (!found.empty() && std::string_view("\"+-").find(found.front()) != std::string_view::npos)
    found.remove_prefix(1);
  if (!found.starts_with("inf") && !found.starts_with("Inf")) return {};
  return option.key == "training.max_norm" ? "0 switches clipping off" : "give it a finite number";
}

}  // namespace

void GivenReader::wrong_type(const Given& given, const std::string& found, std::string remedy) {
  ValueType type = given.alias != nullptr && given.alias->convert ? given.alias->type : given.option->type;
  if (remedy.empty()) remedy = instead_of_infinity(*given.option, found);
  if (remedy.empty()) remedy = given.alias == nullptr ? allowed_text(*given.option) : "give it " + describe(type);
  problem(given.value_place, given.option->key,
          fmt::format("{} = {} is not {}", given.spelling(), found, describe(type)), std::move(remedy));
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
      return problem(given.value_place, option.key,
                     fmt::format("{} = {} is not an allowed value", given.spelling(), found),
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
            fmt::format("unknown option {}.{}", option.key, name),
            close.empty() ? "allowed: " + join(names, ", ") : fmt::format("did you mean {}?", close.front()));
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

namespace {

/// True if the current value does not have a higher level; a second value in the same file is a problem.
bool may_set(const Given& given, const std::string& key, const Settings& settings, std::vector<Problem>& problems) {
  Level there = settings.level(key);
  if (there > given.level) return false;
  if (there == Level::file && given.level == Level::file) {
    problems.push_back({given.key_place, key,
                        fmt::format("{} is the same option as {} at {}", given.spelling(),
                                    settings.origins().spelling(key), settings.origins().place(key).to_string()),
                        "keep one of them", Severity::error});
    return false;
  }
  return true;
}

/// An option recipe_name given under both of its names with different values on the command line is a problem, not an
/// override: the recipe decides all numerics. (For other options, or one name given twice, the last value wins.)
bool contradicts(const Given& given, const Settings& settings, std::vector<Problem>& problems) {
  const std::string& key = given.option->key;
  const bool said_before = settings.level(key) == Level::command_line && given.level == Level::command_line &&
                           settings.origins().spelling(key) != given.spelling();
  if (!said_before || !key.ends_with(".recipe_name") || settings.value(key) == given.value) return false;
  problems.push_back({given.key_place, key,
                      fmt::format("{} = {} contradicts {} = {}, which is the same option", given.spelling(),
                                  to_toml(given.value), settings.origins().spelling(key), to_toml(settings.value(key))),
                      "keep one of them", Severity::error});
  return true;
}

/// True if a later command-line word sets `key` directly: conversions are applied last, but the last word must win.
bool overruled(std::span<const Given> later, const std::string& key) {
  return std::any_of(later.begin(), later.end(), [&](const Given& given) {
    bool converts = given.alias != nullptr && given.alias->convert;
    return given.level == Level::command_line && !converts && given.option->key == key;
  });
}

void apply_conversion(const Given& given, std::span<const Given> later, Settings& settings,
                      std::vector<Problem>& problems, std::vector<std::string>& renamed) {
  Conversion conversion = given.alias->convert(given.value, settings);
  if (!conversion.wrong.empty()) {
    problems.push_back({given.value_place, given.option->key, fmt::format("{}: {}", given.spelling(), conversion.wrong),
                        conversion.remedy, Severity::error});
    return;
  }
  std::vector<std::string> now;
  for (const Assignment& assignment : conversion.assignments) {
    bool replaces = !assignment.extends;
    if (replaces && overruled(later, assignment.key)) continue;
    if (replaces && !may_set(given, assignment.key, settings, problems)) continue;
    Level level = std::max(given.level, settings.level(assignment.key));
    settings.set(assignment.key, assignment.value, level, given.value_place, given.spelling());
    now.push_back(fmt::format("{} = {}", assignment.key, to_toml(assignment.value)));
  }
  std::string result = now.empty() ? "changes nothing (now " + given.option->key + ")" : "is now " + join(now, ", ");
  renamed.push_back(
      fmt::format("{}: {} = {} {}", given.key_place.to_string(), given.spelling(), to_toml(given.value), result));
}

}  // namespace

void apply_given(const std::vector<Given>& given, Settings& settings, std::vector<Problem>& problems,
                 std::vector<std::string>& renamed) {
  for (const Given& one : given) {
    bool converts = one.alias != nullptr && one.alias->convert;
    if (converts || !may_set(one, one.option->key, settings, problems)) continue;
    if (contradicts(one, settings, problems)) continue;
    settings.set(one.option->key, one.value, one.level, one.value_place, one.spelling());
    if (one.alias != nullptr) {
      renamed.push_back(fmt::format("{}: {} is now {}", one.key_place.to_string(), one.spelling(), one.option->key));
    }
  }
  // Conversions read other options, so they come after all direct values, whatever the order in the file.
  for (size_t i = 0; i < given.size(); ++i) {
    bool converts = given[i].alias != nullptr && given[i].alias->convert;
    if (converts) apply_conversion(given[i], std::span(given).subspan(i + 1), settings, problems, renamed);
  }
}

void judge_effects(const Schema& schema, const Settings& settings, LoadedConfig& loaded) {
  // By the condition that does not hold: one note for all options that it makes idle, not one for each.
  std::map<std::string, std::vector<std::string>> idle;
  for (const Option& option : schema.options()) {
    if (!settings.is_set(option.key)) continue;
    const Value& value = settings.value(option.key);
    const auto no_effect = [&](const std::string& why) {
      const std::string place = settings.origins().place(option.key).to_string();
      return fmt::format("{}: {} has no effect here: {}", place, option.key, why);
    };
    if (!option.idle.empty()) {
      if (option.is_harmless(value)) {
        loaded.notes.push_back(no_effect(option.idle));
      } else {
        loaded.problems.push_back(settings.origins().problem(
            option.key, fmt::format("{} = {} is not offered here: {}", option.key, to_toml(value), option.idle),
            "leave it out"));
      }
      continue;
    }
    bool on_command_line = settings.level(option.key) == Level::command_line;
    bool says_something = on_command_line || value != option.default_for(settings.generation());
    if (!says_something) continue;
    if (!option.idle_alone.empty()) loaded.notes_for_one_process.push_back(no_effect(option.idle_alone));
    if (option.condition && !option.condition->holds(loaded.config)) {
      idle[option.condition->text].push_back(option.key);
    }
  }
  for (const auto& [condition, keys] : idle) {
    loaded.notes.push_back(fmt::format("no effect unless {}: {}", condition, join(keys, ", ")));
  }
}

}  // namespace titan::detail
