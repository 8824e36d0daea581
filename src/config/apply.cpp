#include "apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "titan/base/text.h"

namespace titan::detail {
namespace {

/// Whether a weaker level may not overwrite what is there; a second value of the same file is a problem.
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

/// A recipe decides every number of a run: words that give it two names and two values override nothing, they
/// contradict each other. (Of any other option the last word counts, and of one name's.)
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

/// Whether a later word of the command line says `key` plainly: conversions come last, but the last word wins.
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
  // Conversions look at other options, so they come when those have their values.
  for (size_t i = 0; i < given.size(); ++i) {
    bool converts = given[i].alias != nullptr && given[i].alias->convert;
    if (converts) apply_conversion(given[i], std::span(given).subspan(i + 1), settings, problems, renamed);
  }
}

void judge_effects(const Schema& schema, const Settings& settings, const JobConfig& config,
                   std::vector<Problem>& problems, std::vector<std::string>& notes) {
  std::map<std::string, std::vector<std::string>> idle;  // by the condition that does not hold
  for (const Option& option : schema.options()) {
    if (!settings.is_set(option.key)) continue;
    const Value& value = settings.value(option.key);
    std::string place = settings.origins().place(option.key).to_string();
    if (!option.idle.empty()) {
      if (option.is_harmless(value)) {
        notes.push_back(fmt::format("{}: {} has no effect here: {}", place, option.key, option.idle));
      } else {
        problems.push_back(settings.origins().problem(
            option.key, fmt::format("{} = {} is not offered here: {}", option.key, to_toml(value), option.idle),
            "leave it out"));
      }
      continue;
    }
    bool on_command_line = settings.level(option.key) == Level::command_line;
    bool says_something = on_command_line || value != option.default_for(settings.generation());
    if (option.condition && !option.condition->holds(config) && says_something) {
      idle[option.condition->text].push_back(option.key);
    }
  }
  for (const auto& [condition, keys] : idle) {
    notes.push_back(fmt::format("no effect unless {}: {}", condition, join(keys, ", ")));
  }
}

}  // namespace titan::detail
