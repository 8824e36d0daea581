#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "boxes.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using detail::Box;

constexpr int kLeastWidth = 40;
/// A schedule is drawn with room for every label unless it would fill more bands than this.
constexpr double kMostBands = 8;

/// One terminal column: a glyph and the escape sequence it is shown with.
struct Column {
  std::string glyph = "·";
  std::string style;
};
using Row = std::vector<Column>;

std::string style_of(const Box& box) {
  static constexpr int kBackground[] = {4, 2, 6, 3};  // blue F, green B, cyan I, yellow W
  const int colour = kBackground[static_cast<size_t>(box.action.kind)];
  return fmt::format("\x1b[30;{}m", (box.chunk % 2 == 0 ? 40 : 100) + colour);
}

/// The label where it fits, else the kind's letter; a line up to the end, and a blank before the next box.
void draw(const Box& box, int begin, int end, bool colour, Row& row) {
  const auto room = static_cast<size_t>(end - begin);
  const std::string text = box.label.size() <= room ? box.label : std::string(word_of(box.action.kind));
  for (size_t i = 0; i < room; ++i) {
    Column& column = row[static_cast<size_t>(begin) + i];
    const bool gap = i + 1 == room && text.size() < room;
    column.glyph = i < text.size() ? std::string(1, text[i]) : gap ? " " : "─";
    column.style = colour && !gap ? style_of(box) : "";
  }
}

std::string shown(const Row& row, size_t first, size_t end) {
  std::string text;
  std::string style;
  for (size_t i = first; i < std::min(end, row.size()); ++i) {
    if (row[i].style != style) text += row[i].style.empty() ? "\x1b[0m" : row[i].style;
    style = row[i].style;
    text += row[i].glyph;
  }
  if (!style.empty()) return text + "\x1b[0m";
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

class Grid {
 public:
  Grid(const ScheduleRun& run, const GridOptions& options) : run_(run), boxes_(detail::boxes_of(run)) {
    prefix_ = fmt::format("rank {} ", run.table.size() - 1).size();
    room_ = static_cast<size_t>(std::max(options.width, kLeastWidth)) - prefix_;
    const double time = std::max(run.simulation.time, boxes_.shortest);
    scale_ = std::min(static_cast<double>(boxes_.widest + 1) / boxes_.shortest,
                      kMostBands * static_cast<double>(room_) / time);
    const auto columns = static_cast<size_t>(std::lround(time * scale_));
    balance_bands(columns, static_cast<size_t>(std::max(1L, std::lround(boxes_.shortest * scale_))));
    rows_.assign(run.table.size(), Row(columns));
    for (const Box& one : boxes_.all) {
      draw(one, column(one.span.begin), column(one.span.end), options.colour, rows_[static_cast<size_t>(one.rank)]);
    }
  }

  std::string text() const {
    std::string all;
    for (size_t first = 0; first < rows_[0].size(); first += room_) {
      if (first > 0) all += "\n";
      all += ruler(first);
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        all += fmt::format("{:<{}}", fmt::format("rank {}", rank), prefix_) + shown(rows_[rank], first, first + room_) +
               "\n";
      }
    }
    return all;
  }

 private:
  /// Bands of about equal length, which end between boxes where all boxes last equally long.
  void balance_bands(size_t columns, size_t box) {
    if (box >= room_) return;
    room_ -= room_ % box;
    const size_t bands = (columns + room_ - 1) / room_;
    const size_t even = (columns + bands - 1) / bands;
    room_ = std::min(room_, (even + box - 1) / box * box);
  }

  int column(double time) const { return static_cast<int>(std::lround(time * scale_)); }

  /// The times above a band.
  std::string ruler(size_t first) const {
    const double step = detail::axis_step(8 / scale_);
    std::string line;
    for (int mark = 0; column(mark * step) < static_cast<int>(std::min(first + room_, rows_[0].size())); ++mark) {
      if (column(mark * step) < static_cast<int>(first)) continue;
      const std::string text = fmt::format("{:g}", mark * step);
      const size_t at = static_cast<size_t>(column(mark * step)) - first;
      if (at + text.size() <= room_) line += std::string(at - line.size(), ' ') + text;
    }
    return fmt::format("{:<{}}{}\n", "time", prefix_, line);
  }

  const ScheduleRun& run_;
  detail::Boxes boxes_;
  size_t prefix_ = 0;
  size_t room_ = 0;
  double scale_ = 1;  // columns per unit of time
  std::vector<Row> rows_;
};

}  // namespace

std::string schedule_grid(const ScheduleRun& run, const GridOptions& options) { return Grid(run, options).text(); }

std::string schedule_loads(const ScheduleRun& run) {
  std::string text = fmt::format("{:<6}{:>10}{:>10}{:>9}{:>13}{:>12}  {}\n", "rank", "busy", "idle", "idle %",
                                 "activations", "deferred W", "stages");
  for (size_t rank = 0; rank < run.table.size(); ++rank) {
    std::vector<std::string> stages;
    for (const int stage : detail::stages_in(run.table[rank])) stages.push_back(std::to_string(stage));
    const RankLoad& load = run.simulation.ranks[rank];
    const double idle = run.simulation.idle(static_cast<int>(rank));
    text += fmt::format("{:<6}{:>10.6g}{:>10.6g}{:>9.1f}{:>13}{:>12}  {}\n", rank, load.busy, idle,
                        100 * idle / run.simulation.time, load.peak_live, load.peak_deferred, join(stages, ", "));
  }
  return text;
}

}  // namespace titan
