// Displays a simulated schedule: as a grid of ranks against time for the terminal, as an SVG picture, and as a table of
// each rank's load. Also draws any boxes on a time axis as SVG. Returns text.
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
  int width = 100;  ///< columns, at least 40; longer schedules wrap
  bool colour = false;
};

/// One line per rank: each action's word ("3F1"; just "F1" if every rank has one stage) at its time, as wide as its
/// duration, and dots for idle time. Lines are no longer than `width` columns.
std::string schedule_grid(const ScheduleRun& run, const GridOptions& options = {});

/// A line per rank: its stages, busy and idle time, most live activations and deferred weight gradients.
std::string schedule_loads(const ScheduleRun& run);

/// `lines` are shown above the picture.
std::string schedule_svg(const ScheduleRun& run, const std::vector<std::string>& lines);

/// Rows of boxes, as wide as their duration.
struct TimeChart {
  struct Row {
    std::string name, note;  // left and right of the row
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
    std::string title = {}, label = {};  // tooltip, and text in the box if it fits
  };
  std::vector<std::string> lines = {};  // above the picture
  std::vector<Row> rows = {};
  std::vector<Kind> kinds = {};
  std::vector<Box> boxes = {};
  std::string notes = {}, remark = {};  // above the rows' notes, and after the legend
  std::string unit = {};                // of time
  double end = 1;                       // of the axis
  double scale = 0;                     // pixels per unit of time; 0: the narrowest plot
};

std::string chart_svg(const TimeChart& chart);

}  // namespace titan
