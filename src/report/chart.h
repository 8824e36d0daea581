// One chart of the page: curves of one or several runs over steps, as SVG without a fixed width. Private to report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "titan/report/run_history.h"

namespace titan {

/// What a chart shows, and how its numbers are written.
struct ChartStyle {
  std::string title;
  std::string unit;     // after the numbers
  double factor = 1;    // from the series' unit to the shown one
  bool smooth = false;  // draw the smoothed curve, and the values faintly behind it
  bool from_zero = false;
};

struct ChartCurve {
  const Series* series = nullptr;
  const Series* points = nullptr;  // validations, marked one by one; may be null
  int colour = 0;                  // 0 to 7; points of a chart with a single curve have the next one
  std::string name;                // of the run; empty where there is one
};

/// From the first to the last.
struct StepRange {
  int64_t first = 0, last = 0;
};

/// Nothing when no curve has a value.
std::string chart(const ChartStyle& style, const std::vector<ChartCurve>& curves, StepRange steps);

/// Three significant digits, without a power of ten between 1e-4 and 1e6, with "k", "M" above.
std::string short_number(double value);

// The look and the behaviour of report.html: private to report.

extern const char* const kPageStyle;   // CSS
extern const char* const kPageScript;  // JavaScript; the page is complete without it
inline constexpr int kPageColours = 8;

}  // namespace titan
