// A trace's summary as text.
#include <fmt/format.h>

#include <algorithm>

#include "titan/report/trace_summary.h"

namespace titan {
namespace {

constexpr size_t kNameWidth = 72;

/// Names of kernels can be a page long: their beginning tells most.
std::string shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : name.substr(0, width - 3) + "...";
}

std::string table(const std::string& title, const std::vector<PartTime>& parts, double length, size_t top) {
  if (parts.empty()) return {};
  std::string text = fmt::format("\n{:<{}} {:>8} {:>11} {:>8}\n", title, kNameWidth, "calls", "ms", "share");
  double left_out = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartTime& part = parts[i];
    if (i >= top) {
      left_out += part.total;
      continue;
    }
    text += fmt::format("  {:<{}} {:>8} {:>11.3f} {:>7.1f}%\n", shortened(part.name, kNameWidth - 2), kNameWidth - 2,
                        part.calls > 0 ? std::to_string(part.calls) : "", part.total / 1e3, 100 * part.total / length);
  }
  if (parts.size() > top) {
    text += fmt::format("  {:<{}} {:>8} {:>11.3f} {:>7.1f}%\n", fmt::format("{} more", parts.size() - top),
                        kNameWidth - 2, "", left_out / 1e3, 100 * left_out / length);
  }
  return text;
}

std::string gaps(const TraceSummary& summary, size_t top) {
  if (summary.gaps.empty()) return {};
  double total = 0;
  for (const TraceGap& gap : summary.gaps) total += gap.length;
  std::string text = fmt::format("\n{}: {} gaps, {:.3f} ms together; the longest\n{:>11} {:>11}  {}\n",
                                 summary.has_device ? "Device idle" : "Main thread in no operation",
                                 summary.gaps.size(), total / 1e3, "ms", "at ms", "between");
  for (size_t i = 0; i < std::min(top, summary.gaps.size()); ++i) {
    const TraceGap& gap = summary.gaps[i];
    text += fmt::format("{:>11.3f} {:>11.3f}  {} and {}\n", gap.length / 1e3, gap.begin / 1e3,
                        shortened(gap.before, 42), shortened(gap.after, 42));
  }
  return text;
}

}  // namespace

std::string summary_text(const TraceSummary& s, size_t top) {
  std::string text = s.steps > 0
                         ? fmt::format("{} {}, {:.3f} ms", s.steps, s.steps == 1 ? "step" : "steps", s.length / 1e3)
                         : fmt::format("no step is marked; {:.3f} ms in all", s.length / 1e3);
  text += fmt::format("; the main thread is in operations {:.1f}% of it", 100 * s.host_busy / s.length);
  if (s.has_device) text += fmt::format(", the device busy {:.1f}%", 100 * s.device_busy / s.length);
  text += "\n";
  const char* const where = s.has_device ? "Time by kind, on the device" : "Time by kind, on the main thread";
  text += table(where, s.kinds, s.length, s.kinds.size());
  text += table("Time by part, on the device", s.device_parts, s.length, top);
  text += table("Time by part, on the main thread", s.host_parts, s.length, top);
  text += table("Operations on the device", s.kernels, s.length, top);
  text += table("Operations, time in themselves, on all threads", s.operations, s.length, top);
  return text + gaps(s, top);
}

}  // namespace titan
