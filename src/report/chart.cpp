#include "chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "titan/base/text.h"
#include "titan/report/page.h"

namespace titan {
namespace {

// The drawing's own units; the browser stretches them over whatever room there is, lines keep their width.
constexpr double kWidth = 1000, kHeight = 400;
/// Values this far beyond the middle 96 % are cut off, in widths of that middle: one outlier must not flatten a curve.
constexpr double kFarthest = 3;
/// More points than these would run together and hide the curve: they are drawn smaller.
constexpr size_t kFewPoints = 40;
/// Values that differ by less, as a share of themselves, are drawn as one.
constexpr double kAlike = 1e-5;

struct Range {
  double low = 0, high = 1;
  double share(double value) const { return (value - low) / (high - low); }
};

struct Frame {
  Range steps, values;
  std::string point(double step, double value) const {
    return fmt::format("{:.1f} {:.1f}", kWidth * steps.share(step),
                       kHeight * (1 - std::clamp(values.share(value), 0.0, 1.0)));
  }
};

Range value_range(const std::vector<ChartCurve>& curves, const ChartStyle& style) {
  std::vector<double> values;
  for (const ChartCurve& curve : curves) {
    for (const Series* series : {curve.series, curve.points}) {
      if (!series) continue;
      for (const Series::Bucket& bucket : series->buckets()) values.push_back(bucket.mean() * style.factor);
    }
  }
  std::sort(values.begin(), values.end());
  auto at = [&](double share) { return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))]; };
  const double middle = at(0.98) - at(0.02);
  double low = std::max(values.front(), at(0.02) - kFarthest * middle);
  double high = std::min(values.back(), at(0.98) + kFarthest * middle);
  if (style.from_zero) low = 0;
  if (!(high - low > kAlike * std::max(std::abs(high), std::abs(low)))) {
    const double room = std::max(std::abs(high) * 0.05, 1e-12);
    return {style.from_zero ? 0 : low - room, high + room};
  }
  const double room = 0.06 * (high - low);
  return {style.from_zero || (low >= 0 && low < room) ? std::min(low, 0.0) : low - room, high + room};
}

/// 1, 2 or 5 times a power of ten, about a quarter of the range.
std::vector<double> ticks(const Range& range, int most) {
  const double rough = (range.high - range.low) / most;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> found;
  const double first = std::ceil(range.low / step);
  for (int i = 0; i <= 2 * most; ++i) {
    const double tick = (first + i) * step;
    if (tick > range.high + 1e-9 * step) break;
    found.push_back(std::abs(tick) < 1e-9 * step ? 0 : tick);
  }
  return found;
}

std::string path_of(const Series& series, const std::vector<double>& values, const Frame& frame, double factor) {
  std::string path;
  for (size_t i = 0; i < values.size(); ++i) {
    path +=
        fmt::format("{}{}", path.empty() ? "M" : "L", frame.point(series.buckets()[i].middle(), values[i] * factor));
  }
  return path;
}

std::vector<double> means(const Series& series) {
  std::vector<double> values;
  for (const Series::Bucket& bucket : series.buckets()) values.push_back(bucket.mean());
  return values;
}

/// Between the least and the greatest value of every bucket.
std::string band_of(const Series& series, const Frame& frame, double factor) {
  std::string there, back;
  for (const Series::Bucket& bucket : series.buckets()) {
    there += (there.empty() ? "M" : "L") + frame.point(bucket.middle(), bucket.most * factor);
    back = "L" + frame.point(bucket.middle(), bucket.least * factor) + back;
  }
  return there + back + "Z";
}

/// Round ends make a dot of a line without length.
std::string dots_of(const Series& points, const Frame& frame, double factor) {
  std::string path;
  for (const Series::Bucket& bucket : points.buckets()) {
    path += "M" + frame.point(bucket.middle(), bucket.mean() * factor) + "h0";
  }
  return path;
}

std::string curve_svg(const ChartCurve& curve, const ChartStyle& style, const Frame& frame) {
  std::string svg;
  auto path = [&](const char* kind, const std::string& d) {
    svg += fmt::format("<path class=\"{} c{}\" d=\"{}\"/>", kind, curve.colour, d);
  };
  const Series& series = *curve.series;
  if (!series.empty()) {
    const bool gathered = std::any_of(series.buckets().begin(), series.buckets().end(),
                                      [](const Series::Bucket& bucket) { return bucket.count > 1; });
    if (gathered && curve.name.empty()) path("band", band_of(series, frame, style.factor));
    if (style.smooth) path("faint", path_of(series, means(series), frame, style.factor));
    path("line", path_of(series, style.smooth ? series.smoothed() : means(series), frame, style.factor));
    if (series.buckets().size() == 1) path("dots", dots_of(series, frame, style.factor));
  }
  return svg;
}

std::string points_svg(const Series& points, int colour, const ChartStyle& style, const Frame& frame) {
  return fmt::format("<path class=\"{} c{}\" d=\"{}\"/>", points.buckets().size() > kFewPoints ? "dots many" : "dots",
                     colour, dots_of(points, frame, style.factor));
}

/// As JSON, without what would end a script element.
std::string json_in_page(const std::string& text) {
  std::string words = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = words.find('<'); at != std::string::npos; at = words.find('<', at)) words.replace(at, 1, "\\u003c");
  return words;
}

/// What the pointer reads: steps and values of a curve, as the script of the page takes them.
std::string data_of(const Series& series, const std::string& name, int colour, const ChartStyle& style) {
  std::string steps, values;
  for (const Series::Bucket& bucket : series.buckets()) {
    const char* comma = steps.empty() ? "" : ",";
    steps += fmt::format("{}{:.0f}", comma, bucket.middle());
    values += fmt::format("{}{:.6g}", comma, bucket.mean() * style.factor);
  }
  return fmt::format(R"({{"n":{},"c":{},"x":[{}],"y":[{}]}})", json_in_page(name), colour, steps, values);
}

/// Short, unless that would write neighbours alike.
std::vector<std::string> tick_texts(const std::vector<double>& ticks) {
  std::vector<std::string> texts;
  for (const double tick : ticks) texts.push_back(short_number(tick));
  if (std::adjacent_find(texts.begin(), texts.end()) == texts.end()) return texts;
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(ticks[1] - ticks[0]) - 1e-9)));
  for (size_t i = 0; i < ticks.size(); ++i) texts[i] = fmt::format("{:.{}f}", ticks[i], digits);
  return texts;
}

std::string labels(const Range& range, const char* kind, const char* side, bool whole) {
  std::vector<double> at = ticks(range, 5);
  if (whole) std::erase_if(at, [](double tick) { return tick != std::floor(tick); });
  const std::vector<std::string> texts = tick_texts(at);
  std::string html = fmt::format("<div class=\"{}\">", kind);
  for (size_t i = 0; i < at.size(); ++i) {
    html += fmt::format("<span style=\"{}:{:.2f}%\">{}</span>", side, 100 * range.share(at[i]), texts[i]);
  }
  return html + "</div>";
}

std::string grid(const Frame& frame) {
  std::string path;
  for (const double tick : ticks(frame.values, 5)) {
    path += fmt::format("M0 {0:.1f}H{1:.0f}", kHeight * (1 - frame.values.share(tick)), kWidth);
  }
  return fmt::format("<path class=\"grid\" d=\"{}\"/>", path);
}

}  // namespace

std::string short_number(double value) {
  const double size = std::abs(value);
  auto trimmed = [](double number, int digits) {
    std::string text = fmt::format("{:.{}f}", number, digits);
    if (text.find('.') != std::string::npos) {
      while (text.back() == '0') text.pop_back();
      if (text.back() == '.') text.pop_back();
    }
    return text;
  };
  if (size == 0) return "0";
  if (size >= 1e15 || size < 1e-4) return fmt::format("{:.3g}", value);
  if (size >= 1e12) return trimmed(value / 1e12, 2) + "T";
  if (size >= 1e9) return trimmed(value / 1e9, 2) + "B";
  if (size >= 1e6) return trimmed(value / 1e6, 2) + "M";
  if (size >= 1e4) return trimmed(value / 1e3, 2) + "k";
  return trimmed(value, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : size >= 0.01 ? 4 : 6);
}

std::string chart(const ChartStyle& style, const std::vector<ChartCurve>& given, StepRange steps) {
  std::vector<ChartCurve> curves;
  for (const ChartCurve& curve : given) {
    if (!curve.series->empty() || (curve.points && !curve.points->empty())) curves.push_back(curve);
  }
  if (curves.empty()) return {};
  const Range across{static_cast<double>(steps.first), static_cast<double>(std::max(steps.last, steps.first + 1))};
  const Frame frame{across, value_range(curves, style)};
  const bool alone = given.size() == 1;
  std::string svg, dots, data, newest, legend;
  for (const ChartCurve& curve : curves) {
    svg += curve_svg(curve, style, frame);
    data += (data.empty() ? "" : ",") + data_of(*curve.series, curve.name, curve.colour, style);
    if (!curve.points || curve.points->empty()) continue;
    const int colour = alone ? curve.colour + 1 : curve.colour;
    dots += points_svg(*curve.points, colour, style, frame);
    if (!alone) continue;
    data += "," + data_of(*curve.points, "validation", colour, style);
    legend =
        fmt::format(" <small><i class=\"key\" style=\"background:var(--c{})\"></i>dots: validation</small>", colour);
  }
  const Series& first = *curves[0].series;
  if (curves.size() == 1 && !first.empty()) {
    const double value = style.smooth ? first.smoothed().back() : first.buckets().back().mean();
    newest = fmt::format("<b>{}</b>", short_number(value * style.factor));
  }
  return fmt::format(
      "<figure><figcaption>{}{}{}{}</figcaption><div class=\"plot\">{}<svg viewBox=\"0 0 {:.0f} {:.0f}\" "
      "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{} over steps\">{}{}</svg><div class=\"tip\" "
      "hidden></div><script type=\"application/json\">{{\"a\":{},\"b\":{},\"u\":{},\"d\":[{}]}}</script></div>"
      "</figure>\n",
      escaped_html(style.title),
      style.unit.empty() ? "" : fmt::format(" <small>{}</small>", escaped_html(trim(style.unit))), legend, newest,
      labels(frame.values, "ys", "bottom", false) + labels(frame.steps, "xs", "left", true), kWidth, kHeight,
      escaped_html(style.title), grid(frame), svg + dots, frame.steps.low, frame.steps.high, json_in_page(style.unit),
      data);
}

}  // namespace titan
