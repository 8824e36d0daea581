#include "titan/config/problem.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "titan/base/text.h"
#include "titan/config/schema.h"

namespace titan {

std::string Place::to_string() const {
  switch (kind) {
    case Kind::file:
      return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
    case Kind::command_line:
      return "command line: " + source;
    case Kind::default_value:
      return "default of " + source;
  }
  return source;
}

void Origins::set(const std::string& key, Place place, std::string spelling) {
  origins_.insert_or_assign(key, Origin{std::move(place), std::move(spelling)});
}

Place Origins::place(std::string_view key) const {
  auto found = origins_.find(key);
  if (found == origins_.end()) return Place{Place::Kind::default_value, std::string(key)};
  return found->second.place;
}

std::string Origins::spelling(std::string_view key) const {
  auto found = origins_.find(key);
  return found == origins_.end() ? std::string(key) : found->second.spelling;
}

Problem Origins::problem(std::string_view key, std::string what, std::string remedy) const {
  return {place(key), std::string(key), std::move(what), std::move(remedy), Severity::error};
}

Problem Origins::note(std::string_view key, std::string what, std::string remedy) const {
  return {place(key), std::string(key), std::move(what), std::move(remedy), Severity::note};
}

void sort_by_place(std::vector<Problem>& problems) {
  auto rank = [](const Problem& problem) {
    const Place::Kind kind = problem.where.kind;
    const int order = kind == Place::Kind::file ? 0 : kind == Place::Kind::command_line ? 1 : 2;
    return std::tuple(order, problem.where.line, problem.where.column);
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const Problem& a, const Problem& b) { return rank(a) < rank(b); });
}

std::string format_problem(const Problem& problem) {
  const std::string where = problem.where.to_string();
  const std::string text = where.empty() ? problem.what : where + ": " + problem.what;
  return printable(problem.remedy.empty() ? text : text + "; " + problem.remedy);
}

std::string format_problems(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += format_problem(problem) + "\n";
  return text;
}

// Finds the option that a mistyped key most likely meant.

namespace {

std::string_view leaf_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }
std::string_view section_of(std::string_view key) {
  size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Edit distance from a typed key to a known one. A wrong or missing section counts as one edit, because keys of moved
/// options are usually mistyped that way.
size_t key_distance(std::string_view typed, std::string_view known) {
  constexpr size_t far = 1000;
  size_t limit = std::max<size_t>(3, typed.size() / 3);
  if (leaf_of(typed) == leaf_of(known)) return section_of(typed) == section_of(known) ? 0 : 1;
  if (section_of(typed).empty()) {
    const size_t distance = edit_distance(typed, leaf_of(known));
    if (distance <= std::max<size_t>(1, typed.size() / 3)) return distance + 1;
  }
  size_t length_gap = typed.size() > known.size() ? typed.size() - known.size() : known.size() - typed.size();
  if (length_gap > limit) return far;
  size_t distance = edit_distance(typed, known);
  return distance <= limit ? distance : far;
}

std::vector<std::string> best_of(std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked, size_t limit) {
  std::stable_sort(ranked.begin(), ranked.end());
  std::vector<std::string> best;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) best.push_back(std::get<3>(ranked[i]));
  return best;
}

}  // namespace

std::vector<std::string> Schema::suggest(std::string_view key, size_t limit) const {
  std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked;
  auto consider = [&](const std::string& known, size_t former) {
    size_t distance = key_distance(key, known);
    // Of equal distances: a typo is rarely in the first letters, and a former spelling should not be learned anew.
    if (distance < 1000)
      ranked.emplace_back(distance, 1000 - std::min<size_t>(1000, common_prefix(key, known)), former, known);
  };
  for (const Option& option : options_) consider(option.key, 0);
  for (const Alias& alias : aliases_) consider(alias.key, 1);
  return best_of(std::move(ranked), limit);
}

std::vector<std::string> Schema::suggest_section(std::string_view name) const {
  std::vector<std::string> names;
  for (const SectionInfo& section : sections_) names.push_back(section.name);
  return nearest(name, names, 1);
}

}  // namespace titan
