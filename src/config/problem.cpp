#include "titan/config/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "titan/base/printable.h"

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

}  // namespace titan
