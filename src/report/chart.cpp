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

Range step_range(const std::vector<ChartCurve>& curves) {
  double low = 1e300, high = -1e300;
  for (const ChartCurve& curve : curves) {
    for (const Series* series : {curve.series, curve.points}) {
      if (!series || series->empty()) continue;
      low = std::min(low, static_cast<double>(series->buckets().front().first));
      high = std::max(high, static_cast<double>(series->buckets().back().last));
    }
  }
  return {low, std::max(high, low + 1)};
}

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
  if (!(high - low > 1e-9 * std::max(std::abs(high), std::abs(low)))) {
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
  // A single value is a dot: round ends make one of a line without length.
  return values.size() == 1 ? path + "h0" : path;
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
  }
  if (curve.points && !curve.points->empty()) path("dots", dots_of(*curve.points, frame, style.factor));
  return svg;
}

/// As JSON, without what would end a script element.
std::string json_in_page(const std::string& text) {
  std::string words = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = words.find('<'); at != std::string::npos; at = words.find('<', at)) words.replace(at, 1, "\\u003c");
  return words;
}

/// What the pointer reads: steps and values of a curve, as the script of the page takes them.
std::string data_of(const ChartCurve& curve, const ChartStyle& style) {
  std::string steps, values;
  for (const Series::Bucket& bucket : curve.series->buckets()) {
    const char* comma = steps.empty() ? "" : ",";
    steps += fmt::format("{}{:.0f}", comma, bucket.middle());
    values += fmt::format("{}{:.6g}", comma, bucket.mean() * style.factor);
  }
  return fmt::format(R"({{"n":{},"c":{},"x":[{}],"y":[{}]}})", json_in_page(curve.name), curve.colour, steps, values);
}

std::string labels(const Frame& frame) {
  std::string html = "<div class=\"ys\">";
  for (const double tick : ticks(frame.values, 5)) {
    html += fmt::format("<span style=\"bottom:{:.2f}%\">{}</span>", 100 * frame.values.share(tick), short_number(tick));
  }
  html += "</div><div class=\"xs\">";
  for (const double tick : ticks(frame.steps, 5)) {
    if (tick != std::floor(tick)) continue;
    html += fmt::format("<span style=\"left:{:.2f}%\">{}</span>", 100 * frame.steps.share(tick), short_number(tick));
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

std::string chart(const ChartStyle& style, const std::vector<ChartCurve>& given) {
  std::vector<ChartCurve> curves;
  for (const ChartCurve& curve : given) {
    if (!curve.series->empty() || (curve.points && !curve.points->empty())) curves.push_back(curve);
  }
  if (curves.empty()) return {};
  const Frame frame{step_range(curves), value_range(curves, style)};
  std::string svg, data, newest;
  for (const ChartCurve& curve : curves) {
    svg += curve_svg(curve, style, frame);
    data += (data.empty() ? "" : ",") + data_of(curve, style);
  }
  const Series& first = *curves[0].series;
  if (curves.size() == 1 && !first.empty()) {
    const double value = style.smooth ? first.smoothed().back() : first.buckets().back().mean();
    newest = fmt::format("<b>{}</b>", short_number(value * style.factor));
  }
  return fmt::format(
      "<figure><figcaption>{}{}{}</figcaption><div class=\"plot\">{}<svg viewBox=\"0 0 {:.0f} {:.0f}\" "
      "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{} over steps\">{}{}</svg><div class=\"tip\" "
      "hidden></div><script type=\"application/json\">{{\"a\":{},\"b\":{},\"u\":{},\"d\":[{}]}}</script></div>"
      "</figure>\n",
      escaped_html(style.title),
      style.unit.empty() ? "" : fmt::format(" <small>{}</small>", escaped_html(trim(style.unit))), newest,
      labels(frame), kWidth, kHeight, escaped_html(style.title), grid(frame), svg, frame.steps.low, frame.steps.high,
      json_in_page(style.unit), data);
}

}  // namespace titan
