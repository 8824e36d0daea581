// What pictures of a schedule are made of: a box per compute action. Private to schedule; grid.cpp and svg.cpp draw
// them.
#pragma once

#include <string>
#include <vector>

#include "titan/schedule/picture.h"

namespace titan::detail {

struct Box {
  int rank = 0;
  int chunk = 0;  ///< the how-manyth of the rank's stages
  Span span;
  Action action;  ///< F, B, I or W
  std::string label;
};

struct Boxes {
  std::vector<Box> all;  ///< by rank, then by time
  double shortest = 0;   ///< time of the shortest box
  size_t widest = 0;     ///< characters of the longest label
};

/// The halves of a merged pair are boxes of their own; what takes no time is none.
Boxes boxes_of(const ScheduleRun& run);

/// The stages whose actions a rank has, rising.
std::vector<int> stages_in(const std::vector<Action>& actions);

/// A distance between marks on a time axis, 1, 2 or 5 times a power of ten, of at least `least`.
double axis_step(double least);

}  // namespace titan::detail
