#include "titan/schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/text.h"

namespace titan {
namespace {

constexpr size_t kMostLinesNamed = 10;

/// Spreadsheets put quotes around cells.
std::string unquoted(const std::string& cell) {
  const std::string text = trim(cell);
  const bool quoted = text.size() >= 2 && text.starts_with('"') && text.ends_with('"');
  return quoted ? trim(text.substr(1, text.size() - 2)) : text;
}

/// Spreadsheets end tables with rows of commas.
bool holds_nothing(const std::string& line) {
  const std::vector<std::string> cells = split(line, ',');
  return std::all_of(cells.begin(), cells.end(), [](const std::string& cell) { return unquoted(cell).empty(); });
}

std::string printable(std::string_view word) {
  constexpr size_t kMostShown = 40;
  std::string shown;
  for (const char c : word.substr(0, kMostShown)) shown += c >= 0x20 && c < 0x7F ? c : '?';
  return word.size() > kMostShown ? shown + "..." : shown;
}

}  // namespace

CsvTable parse_csv(std::string_view text, std::string_view name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // the mark that some editors put first
  std::vector<std::string> lines = split(text, '\n');
  while (!lines.empty() && holds_nothing(lines.back())) lines.pop_back();
  CsvTable read;
  if (lines.empty()) read.problems.push_back(fmt::format("{}: holds no schedule; write one line per rank", name));
  for (size_t row = 0; row < lines.size(); ++row) {
    std::vector<Action>& actions = read.table.emplace_back();
    if (holds_nothing(lines[row]) && read.problems.size() < kMostLinesNamed) {
      read.problems.push_back(
          fmt::format("{}: row {} is empty, so rank {} would do nothing; write one row per rank and none between them",
                      name, row + 1, row));
    }
    const std::vector<std::string> cells = split(lines[row], ',');
    for (size_t cell = 0; cell < cells.size() && read.problems.size() < kMostLinesNamed; ++cell) {
      const std::string word = unquoted(cells[cell]);
      if (word.empty()) continue;
      if (std::optional<Action> action = parse_action(word)) {
        actions.push_back(std::move(*action));
        continue;
      }
      read.problems.push_back(
          fmt::format("{}: row {}, cell {}: \"{}\" is no action; write stage, kind and microbatch, "
                      "for example 2F0 (kinds F, I, W, B; lowered ones in docs/schedules.md)",
                      name, row + 1, cell + 1, printable(word)));
    }
  }
  return read;
}

std::string to_csv(const ScheduleTable& table) {
  std::string text;
  for (const std::vector<Action>& actions : table) {
    std::vector<std::string> cells;
    for (const Action& action : actions) cells.push_back(to_string(action));
    text += join(cells, ",") + "\n";
  }
  return text;
}

}  // namespace titan
