// The part of the check that walks all ranks at once. Private to schedule; called when all else about a table is right.
#pragma once

#include <string>
#include <vector>

#include "titan/schedule/check.h"

namespace titan::detail {

/// What each rank waits for, one sentence for every rank that never ends; empty when all of them come to their end.
std::vector<std::string> deadlocks(const ScheduleTable& table, const TableFacts& facts);

}  // namespace titan::detail
