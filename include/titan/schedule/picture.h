// A simulated schedule for people: a grid of ranks against time for the terminal, the same as an SVG picture, and a
// table of what each rank does. Returns text.
#pragma once

#include <string>
#include <vector>

#include "titan/schedule/simulator.h"

namespace titan {

/// A table without problems and its simulation with `times`.
struct ScheduleRun {
  ScheduleTable table;
  ActionTimes times;
  Simulation simulation;
};

ScheduleRun run_of(ScheduleTable table, ActionTimes times);

struct GridOptions {
  int width = 100;  ///< columns, at least 40; a longer schedule is continued below
  bool colour = false;
};

/// One line per rank, with the words of the table ("3F1"; just "F1" when every rank has one stage) where they run, as
/// wide as they last, and dots for idle time. Lines are no longer than `width` columns.
std::string schedule_grid(const ScheduleRun& run, const GridOptions& options = {});

/// A line per rank: its stages, busy and idle time, most live activations and deferred weight gradients.
std::string schedule_loads(const ScheduleRun& run);

/// `lines` are written above the picture.
std::string schedule_svg(const ScheduleRun& run, const std::vector<std::string>& lines);

}  // namespace titan
