#include "titan/schedule/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "titan/base/text.h"

namespace titan {
namespace {

// A picture consists of boxes, one per compute action.

struct Box {
  int rank = 0;
  int chunk = 0;  ///< index among the rank's stages
  Span span;
  Action action;  ///< F, B, I or W
  std::string label;
};

struct Boxes {
  std::vector<Box> all;  ///< by rank, then by time
  double shortest = 0;   ///< time of the shortest box
  size_t widest = 0;     ///< characters of the longest label
};

/// The stages whose actions a rank has, ascending.
std::vector<int> stages_in(const std::vector<Action>& actions) {
  std::set<int> stages;
  for (const Action& action : actions) {
    for (const Action& leaf : leaves(action)) {
      if (is_compute(leaf.kind)) stages.insert(leaf.stage);
    }
  }
  return {stages.begin(), stages.end()};
}

/// The halves of a merged pair are separate boxes; actions without duration have none.
Boxes boxes_of(const ScheduleRun& run) {
  bool one_stage_each = true;
  for (const std::vector<Action>& actions : run.table) one_stage_each &= stages_in(actions).size() <= 1;
  Boxes boxes;
  for (size_t rank = 0; rank < run.table.size(); ++rank) {
    const std::vector<int> stages = stages_in(run.table[rank]);
    for (size_t i = 0; i < run.table[rank].size(); ++i) {
      double begin = run.simulation.spans[rank][i].begin;
      for (const Action& leaf : leaves(run.table[rank][i])) {
        if (!is_compute(leaf.kind)) continue;
        const double duration = run.times.of_stage(leaf.stage).of(leaf.kind);
        if (duration <= 0) continue;
        Box box{static_cast<int>(rank), 0, {begin, begin + duration}, leaf, {}};
        box.chunk = static_cast<int>(std::find(stages.begin(), stages.end(), leaf.stage) - stages.begin());
        box.label = one_stage_each ? fmt::format("{}{}", word_of(leaf.kind), leaf.microbatch) : to_string(leaf);
        boxes.shortest = boxes.all.empty() ? duration : std::min(boxes.shortest, duration);
        boxes.widest = std::max(boxes.widest, box.label.size());
        boxes.all.push_back(std::move(box));
        begin += duration;
      }
    }
  }
  return boxes;
}

/// The distance between marks on a time axis, 1, 2 or 5 times a power of ten, at least `least`.
double axis_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= least) return power * factor;
  }
  return power * 10;
}

// ---- the grid for a terminal

// A terminal may report a width of 0, and a picture that wraps can still be read.
constexpr int kLeastWidth = 40;
/// A schedule is drawn with room for every label, unless that takes more bands than this.
constexpr double kMostBands = 8;

/// One terminal column: a glyph and its escape sequence.
struct Column {
  std::string glyph = "·";
  std::string style;
};
using Row = std::vector<Column>;

std::string style_of(const Box& box) {
  static constexpr int kBackground[] = {4, 2, 6, 3};
  const int colour = kBackground[static_cast<size_t>(box.action.kind)];
  return fmt::format("\x1b[30;{}m", (box.chunk % 2 == 0 ? 40 : 100) + colour);
}

/// Draws the label if it fits, else the kind's letter; then a line to the end, and a blank before the next box.
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
  Grid(const ScheduleRun& run, const GridOptions& options) : run_(run), boxes_(boxes_of(run)) {
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
  /// Makes bands about equally long; they end between boxes if all boxes last equally long.
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
    const double step = axis_step(8 / scale_);
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
  Boxes boxes_;
  size_t prefix_ = 0;
  size_t room_ = 0;
  double scale_ = 1;  // columns per unit of time
  std::vector<Row> rows_;
};

// ---- SVG

constexpr double kLeastBox = 20;     // pixels: a shorter box has no room for its label
constexpr double kMostWidth = 2400;  // of the plot: beyond it boxes get shorter than kLeastBox instead
// Pixels, chosen by eye: a plot is about as wide as the legend below it, a row has room for a line of text, the left
// for names as short as "rank 0", the right for a note.
constexpr double kLeastPlotWidth = 420;
constexpr double kRow = 34;
constexpr double kRowGap = 4;
constexpr double kLeastLeft = 72;
constexpr double kRight = 150;
// Widths of characters in the fonts that browsers take: SVG cannot measure text before it is drawn.
constexpr double kCharacter = 7.4;
constexpr double kWideCharacter = 8;
constexpr double kLine = 20;

/// Other shades are lighter.
std::string fill_of(const TimeChart::Kind& kind, int shade) {
  const double white = 1 - std::pow(0.62, shade);
  std::string text = "#";
  for (const int part : kind.colour) text += fmt::format("{:02x}", static_cast<int>(part + (255 - part) * white));
  return text;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return safe;
}

class Picture {
 public:
  explicit Picture(const TimeChart& chart)
      : chart_(chart),
        top_(36 + kLine * static_cast<double>(chart.lines.size())),
        scale_(std::max(chart.scale, kLeastPlotWidth / chart.end)) {
    for (const TimeChart::Row& row : chart.rows) {
      left_ = std::max(left_, 24 + kWideCharacter * static_cast<double>(row.name.size()));
    }
  }

  std::string text() {
    const double bottom = y(chart_.rows.size());
    const double width = x(chart_.end) + (chart_.notes.empty() ? 40 : kRight);
    const double height = bottom + 66;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 "
        "{0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" "
        "fill=\"#1b1f24\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        width, height);
    for (size_t i = 0; i < chart_.lines.size(); ++i) {
      out_ +=
          fmt::format("<text x=\"16\" y=\"{:.0f}\" {}>{}</text>\n", 28 + kLine * static_cast<double>(i),
                      i == 0 ? "font-size=\"16\" font-weight=\"bold\"" : "font-size=\"13\"", escaped(chart_.lines[i]));
    }
    draw_rows();
    draw_axis(bottom);
    for (const TimeChart::Box& box : chart_.boxes) draw(box);
    draw_legend(bottom + 46);
    return out_ + "</svg>\n";
  }

 private:
  double x(double time) const { return left_ + time * scale_; }
  double y(size_t row) const { return top_ + static_cast<double>(row) * (kRow + kRowGap); }

  void draw_rows() {
    const double right = x(chart_.end) + 14;
    if (!chart_.notes.empty()) {
      out_ +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#57606a\">{}</text>\n", right, top_ - 8, chart_.notes);
    }
    for (size_t row = 0; row < chart_.rows.size(); ++row) {
      const auto& [name, note] = chart_.rows[row];
      const double middle = y(row) + kRow / 2 + 4;
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#eef0f2\"/>\n",
                          left_, y(row), x(chart_.end) - left_, kRow);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"13\">{}</text>\n",
                          left_ - 12, middle, name);
      if (note.empty()) continue;
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"13\">{}</text>\n", right, middle, note);
    }
  }

  void draw_axis(double bottom) {
    const double step = axis_step(60 / scale_);
    for (int mark = 0; mark * step <= chart_.end * (1 + 1e-9); ++mark) {
      const double at = x(mark * step);
      out_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#d0d7de\"/>\n", at, top_ - 4, bottom + 4);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#57606a\">{:g}{}</text>\n", at,
                          bottom + 17, mark * step, chart_.unit);
    }
  }

  void draw(const TimeChart::Box& box) {
    const double width = x(box.end) - x(box.begin);
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"{}>"
        "<title>{}: {:g} to {:g}{}</title></rect>\n",
        x(box.begin), y(box.row), width, kRow, fill_of(chart_.kinds[box.kind], box.shade),
        width < 4 ? "" : " stroke=\"#ffffff\"", escaped(box.title), box.begin, box.end, chart_.unit);
    if (box.label.empty() || static_cast<double>(box.label.size()) * kCharacter > width) return;
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x(box.begin) + width / 2,
                        y(box.row) + kRow / 2 + 4, escaped(box.label));
  }

  void draw_legend(double at) {
    double left = left_;
    for (size_t kind = 0; kind < chart_.kinds.size(); ++kind) {
      const auto is_of_kind = [kind](const TimeChart::Box& box) { return box.kind == kind; };
      if (std::none_of(chart_.boxes.begin(), chart_.boxes.end(), is_of_kind)) continue;
      const std::string& meaning = chart_.kinds[kind].meaning;
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", left, at - 11,
                          fill_of(chart_.kinds[kind], 0));
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + 20, at, meaning);
      left += 40 + static_cast<double>(meaning.size()) * kCharacter;
    }
    if (chart_.remark.empty()) return;
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, at, chart_.remark);
  }

  const TimeChart& chart_;
  double top_, scale_;
  double left_ = kLeastLeft;
  std::string out_;
};

TimeChart chart_of(const ScheduleRun& run, const std::vector<std::string>& lines) {
  const Boxes boxes = boxes_of(run);
  const double time = run.simulation.time, label = static_cast<double>(boxes.widest) * kCharacter + 4;
  TimeChart chart{.lines = lines,
                  .kinds = {{"F  forward", {111, 168, 220}},
                            {"B  backward", {124, 196, 127}},
                            {"I  input gradient", {95, 196, 184}},
                            {"W  weight gradient", {246, 178, 107}}},
                  .notes = "peak activations",
                  .end = time,
                  .scale = std::min(std::max(kLeastBox, label) / boxes.shortest, kMostWidth / time)};
  for (size_t rank = 0; rank < run.table.size(); ++rank) {
    chart.rows.push_back({fmt::format("rank {}", rank), std::to_string(run.simulation.ranks[rank].peak_live)});
  }
  const double scale = std::max(chart.scale, kLeastPlotWidth / time);
  // Without room for full labels all boxes show their microbatch alone, which is what tells them apart within a row.
  const bool full_labels = label <= boxes.shortest * scale * (1 + 1e-9);
  bool chunks = false;
  for (const Box& box : boxes.all) {
    chunks |= box.chunk > 0;
    chart.boxes.push_back({static_cast<size_t>(box.rank), box.span.begin, box.span.end,
                           static_cast<size_t>(box.action.kind), box.chunk, to_string(box.action),
                           full_labels ? box.label : std::to_string(box.action.microbatch)});
  }
  if (chunks) chart.remark = "lighter: a later stage";
  if (!full_labels) chart.remark += chunks ? "; numbers: microbatches" : "numbers: microbatches";
  return chart;
}

}  // namespace

ScheduleRun run_of(ScheduleTable table, ActionTimes times) {
  Simulation simulation = simulate(table, times);
  return {std::move(table), std::move(times), std::move(simulation)};
}

std::string schedule_grid(const ScheduleRun& run, const GridOptions& options) { return Grid(run, options).text(); }

std::string schedule_loads(const ScheduleRun& run) {
  std::string text = fmt::format("{:<6}{:>10}{:>10}{:>9}{:>13}{:>12}  {}\n", "rank", "busy", "idle", "idle %",
                                 "activations", "deferred W", "stages");
  for (size_t rank = 0; rank < run.table.size(); ++rank) {
    std::vector<std::string> stages;
    for (const int stage : stages_in(run.table[rank])) stages.push_back(std::to_string(stage));
    const RankLoad& load = run.simulation.ranks[rank];
    const double idle = run.simulation.idle(static_cast<int>(rank));
    text += fmt::format("{:<6}{:>10.6g}{:>10.6g}{:>9.1f}{:>13}{:>12}  {}\n", rank, load.busy, idle,
                        100 * idle / run.simulation.time, load.peak_live, load.peak_deferred, join(stages, ", "));
  }
  return text;
}

std::string schedule_svg(const ScheduleRun& run, const std::vector<std::string>& lines) {
  return chart_svg(chart_of(run, lines));
}

std::string chart_svg(const TimeChart& chart) { return Picture(chart).text(); }

}  // namespace titan
