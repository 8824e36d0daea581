// Checks and simulations of schedule tables by other rules than action_rules(): what a test damages has to be noticed.
#pragma once

#include "titan/schedule/rules.h"
#include "titan/schedule/table.h"

namespace titan {

std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected,
                                        const RuleTable& rules);
Simulation simulate(const ScheduleTable& table, const ActionTimes& times, const RuleTable& rules);
std::vector<std::string> deadlocks(const ScheduleTable& table, const RuleTable& rules);

}  // namespace titan
