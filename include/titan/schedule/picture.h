// A simulated schedule for people: a grid of ranks against time for the terminal, the same as an SVG picture, and a
// table of what each rank does; and any boxes on an axis of time as such a picture. Returns text.
#pragma once

#include <array>
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

/// Rows of boxes, as wide as they last.
struct TimeChart {
  struct Row {
    std::string name, note;  // left and right of it
  };
  struct Kind {
    std::string meaning;
    std::array<int, 3> colour;  // red, green, blue
  };
  struct Box {
    size_t row = 0;
    double begin = 0, end = 0;
    size_t kind = 0;
    int shade = 0;                       // 0: the kind's colour; above: lighter
    std::string title = {}, label = {};  // shown under the pointer, and where it fits
  };
  std::vector<std::string> lines = {};  // above the picture
  std::vector<Row> rows = {};
  std::vector<Kind> kinds = {};
  std::vector<Box> boxes = {};
  std::string notes = {}, remark = {};  // above the rows' notes, and behind the legend
  std::string unit = {};                // of time
  double end = 1;                       // of the axis
  double scale = 0;                     // pixels for a unit of time; 0: as narrow a plot as there is
};

std::string chart_svg(const TimeChart& chart);

}  // namespace titan
