// Schedule tables as text: one line per rank, cells separated by commas, an empty cell for idle time. PyTorch 2.11
// reads what is written here and the other way round, tables of compute actions and lowered ones (docs/schedules.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "titan/schedule/action.h"

namespace titan {

struct CsvTable {
  ScheduleTable table;
  std::vector<std::string> problems;  ///< sentences; empty when every cell is an action or empty
};

/// Reads what `text` holds; `name` (the file's) is only shown: "mine.csv: row 2, cell 5: \"2X1\" is no action; …".
/// Whether the table makes sense is another question (check.h).
CsvTable parse_csv(std::string_view text, std::string_view name);

/// One line per rank, without idle cells.
std::string to_csv(const ScheduleTable& table);

}  // namespace titan
