#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "boxes.h"

namespace titan {
namespace {

using detail::Box;

constexpr double kLeastBox = 20;     // pixels of the shortest box, where the picture does not get too wide for it
constexpr double kMostWidth = 2400;  // of the plot
constexpr double kLeastPlotWidth = 420;
constexpr double kRow = 34;
constexpr double kGap = 4;  // between rows
constexpr double kLeft = 72;
constexpr double kRight = 150;
constexpr double kCharacter = 7.4;  // width of a label's character
constexpr double kLine = 20;

struct Paint {
  ActionKind kind;
  std::array<int, 3> colour;
  std::string_view meaning;
};
constexpr std::array<Paint, 4> kPaints{{
    {ActionKind::forward, {111, 168, 220}, "F  forward"},
    {ActionKind::backward, {124, 196, 127}, "B  backward"},
    {ActionKind::input_gradient, {95, 196, 184}, "I  input gradient"},
    {ActionKind::weight_gradient, {246, 178, 107}, "W  weight gradient"},
}};

const Paint& paint_of(ActionKind kind) {
  return *std::find_if(kPaints.begin(), kPaints.end(), [kind](const Paint& paint) { return paint.kind == kind; });
}

/// Later stages of a rank are lighter.
std::string fill_of(const Paint& paint, int chunk) {
  const double white = 1 - std::pow(0.62, chunk);
  std::string text = "#";
  for (const int part : paint.colour) text += fmt::format("{:02x}", static_cast<int>(part + (255 - part) * white));
  return text;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return safe;
}

class Picture {
 public:
  Picture(const ScheduleRun& run, const std::vector<std::string>& lines)
      : run_(run), lines_(lines), boxes_(detail::boxes_of(run)), top_(36 + kLine * static_cast<double>(lines.size())) {
    const double time = run.simulation.time;
    const double label = static_cast<double>(boxes_.widest) * kCharacter + 4;
    scale_ = std::min(std::max(kLeastBox, label) / boxes_.shortest, kMostWidth / time);
    scale_ = std::max(scale_, kLeastPlotWidth / time);
    full_labels_ = label <= boxes_.shortest * scale_ * (1 + 1e-9);
  }

  std::string text() {
    const double plot_width = x(run_.simulation.time) - kLeft;
    const double bottom = top_ + row_count() * (kRow + kGap);
    const double width = kLeft + plot_width + kRight;
    const double height = bottom + 66;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 "
        "{0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" "
        "fill=\"#1b1f24\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        width, height);
    for (size_t i = 0; i < lines_.size(); ++i) {
      out_ += fmt::format("<text x=\"16\" y=\"{:.0f}\" {}>{}</text>\n", 28 + kLine * static_cast<double>(i),
                          i == 0 ? "font-size=\"16\" font-weight=\"bold\"" : "font-size=\"13\"", escaped(lines_[i]));
    }
    draw_rows(plot_width);
    draw_axis(bottom);
    for (const Box& box : boxes_.all) draw(box);
    draw_legend(bottom + 46);
    return out_ + "</svg>\n";
  }

 private:
  double x(double time) const { return kLeft + time * scale_; }
  double y(int rank) const { return top_ + rank * (kRow + kGap); }
  int row_count() const { return static_cast<int>(run_.table.size()); }

  void draw_rows(double plot_width) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#57606a\">peak activations</text>\n",
                        kLeft + plot_width + 14, top_ - 8);
    for (int rank = 0; rank < row_count(); ++rank) {
      const double middle = y(rank) + kRow / 2 + 4;
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#eef0f2\"/>\n",
                          kLeft, y(rank), plot_width, kRow);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"13\">rank {}</text>\n",
                          kLeft - 12, middle, rank);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"13\">{}</text>\n", kLeft + plot_width + 14,
                          middle, run_.simulation.ranks[static_cast<size_t>(rank)].peak_live);
    }
  }

  void draw_axis(double bottom) {
    const double step = detail::axis_step(60 / scale_);
    for (int mark = 0; mark * step <= run_.simulation.time * (1 + 1e-9); ++mark) {
      const double at = x(mark * step);
      out_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#d0d7de\"/>\n", at, top_ - 4, bottom + 4);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#57606a\">{:g}</text>\n", at,
                          bottom + 17, mark * step);
    }
  }

  void draw(const Box& box) {
    const double width = x(box.span.end) - x(box.span.begin);
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"#ffffff\">"
        "<title>{}: {:g} to {:g}</title></rect>\n",
        x(box.span.begin), y(box.rank), width, kRow, fill_of(paint_of(box.action.kind), box.chunk),
        to_string(box.action), box.span.begin, box.span.end);
    const std::string label = full_labels_ ? box.label : std::to_string(box.action.microbatch);
    if (static_cast<double>(label.size()) * kCharacter > width) return;
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                        x(box.span.begin) + width / 2, y(box.rank) + kRow / 2 + 4, label);
  }

  void draw_legend(double at) {
    double left = kLeft;
    for (const Paint& paint : kPaints) {
      const bool used = std::any_of(boxes_.all.begin(), boxes_.all.end(),
                                    [&](const Box& box) { return box.action.kind == paint.kind; });
      if (!used) continue;
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", left, at - 11,
                          fill_of(paint, 0));
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + 20, at, paint.meaning);
      left += 40 + static_cast<double>(paint.meaning.size()) * kCharacter;
    }
    const bool chunks = std::any_of(boxes_.all.begin(), boxes_.all.end(), [](const Box& box) { return box.chunk > 0; });
    const std::string note = fmt::format("{}{}", chunks ? "lighter: a later stage" : "",
                                         full_labels_ ? ""
                                         : chunks     ? "; numbers: microbatches"
                                                      : "numbers: microbatches");
    if (!note.empty()) out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, at, note);
  }

  const ScheduleRun& run_;
  const std::vector<std::string>& lines_;
  detail::Boxes boxes_;
  double top_;
  double scale_ = 1;          // pixels per unit of time
  bool full_labels_ = false;  // else microbatches alone
  std::string out_;
};

}  // namespace

std::string schedule_svg(const ScheduleRun& run, const std::vector<std::string>& lines) {
  return Picture(run, lines).text();
}

}  // namespace titan
