#include "titan/report/trace_summary.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>

namespace titan {
namespace {

using Kind = TraceEvent::Kind;
using Events = std::vector<const TraceEvent*>;

/// "forward layers.12" → "forward layers.*".
std::string without_number(const std::string& name) {
  size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) != 0) --end;
  return end < name.size() && end > 0 && name[end - 1] == '.' ? name.substr(0, end) + "*" : name;
}

std::string own_name(const TraceEvent& event) { return without_number(event.name); }

void by_time(Events& events) {
  std::sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->length > b->length;
  });
}

using Totals = std::map<std::string, PartTime>;
using NameOf = std::function<std::string(const TraceEvent&)>;

void add(Totals& totals, const std::string& name, double time) {
  PartTime& part = totals[name];
  ++part.calls;
  part.total += time;
}

/// Adds each event's own time (without nested events) to the total of its name. Events of one thread are nested or
/// disjoint.
void add_own_times(Events events, Totals& totals, const NameOf& name_of = own_name) {
  by_time(events);
  // Events that enclose the current one, each with the time of its children so far: its own time is the rest.
  std::vector<std::pair<const TraceEvent*, double>> open;
  auto close = [&] {
    const auto [event, inside] = open.back();
    open.pop_back();
    add(totals, name_of(*event), std::max(0.0, event->length - inside));
    if (!open.empty()) open.back().second += event->length;
  };
  for (const TraceEvent* event : events) {
    while (!open.empty() && open.back().first->end() <= event->begin) close();
    open.emplace_back(event, 0.0);
  }
  while (!open.empty()) close();
}

std::vector<PartTime> longest_first(const Totals& totals) {
  std::vector<PartTime> parts;
  for (const auto& [name, part] : totals) parts.push_back({name, part.calls, part.total});
  std::stable_sort(parts.begin(), parts.end(), [](const PartTime& a, const PartTime& b) { return a.total > b.total; });
  return parts;
}

struct Window {
  double begin, end;
};

/// Total time inside the windows in which at least one of `events` is active; appends the gaps between them.
double busy_time(Events events, const std::vector<Window>& windows, std::vector<TraceGap>& gaps, double origin) {
  by_time(events);
  double busy = 0;
  for (const Window& window : windows) {
    double reached = window.begin;
    const TraceEvent* last = nullptr;
    auto gap_until = [&](double end, const TraceEvent* next) {
      if (end <= reached) return;
      gaps.push_back({end - reached, reached - origin, last ? last->name : "the step's beginning",
                      next ? next->name : "the step's end"});
    };
    for (const TraceEvent* event : events) {
      if (event->end() <= window.begin || event->begin >= window.end) continue;
      const double begin = std::max(event->begin, window.begin), end = std::min(event->end(), window.end);
      gap_until(begin, event);
      if (end <= reached) continue;
      busy += end - std::max(begin, reached);
      reached = end;
      last = event;
    }
    gap_until(window.end, nullptr);
  }
  std::stable_sort(gaps.begin(), gaps.end(), [](const TraceGap& a, const TraceGap& b) { return a.length > b.length; });
  return busy;
}

/// The thread with the step marks; otherwise the one with the most time in operations.
int64_t main_thread(const std::vector<TraceEvent>& events) {
  std::map<int64_t, double> busy;
  for (const TraceEvent& event : events) {
    if (event.kind == Kind::step) return event.thread;
    if (event.kind == Kind::operation) busy[event.thread] += event.length;
  }
  const auto most =
      std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == busy.end() ? 0 : most->first;
}

std::vector<Window> windows_of(const std::vector<TraceEvent>& events, int64_t& steps) {
  std::vector<Window> windows;
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  for (const TraceEvent& event : events) {
    begin = std::min(begin, event.begin);
    end = std::max(end, event.end());
    if (event.kind == Kind::step) windows.push_back({event.begin, event.end()});
  }
  steps = static_cast<int64_t>(windows.size());
  if (windows.empty()) windows.push_back({begin, end});
  std::sort(windows.begin(), windows.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
  return windows;
}

/// A device still executes a step's work after the host has enqueued it, so extend each window to the next step, and
/// the last window to the last kernel.
std::vector<Window> device_windows(std::vector<Window> windows, const Events& device) {
  for (size_t i = 0; i + 1 < windows.size(); ++i) windows[i].end = windows[i + 1].begin;
  for (const TraceEvent* event : device) windows.back().end = std::max(windows.back().end, event->end());
  return windows;
}

double total_of(const std::vector<Window>& windows) {
  double total = 0;
  for (const Window& window : windows) total += window.end - window.begin;
  return total;
}

Stretches stretches_of(const Events& ranges, std::string_view name) {
  Stretches stretches;
  for (const TraceEvent* range : ranges) {
    if (range->name == name) stretches.add(*range);
  }
  return stretches;
}

void add_rest(std::vector<PartTime>& parts, double length) {
  double named = 0;
  for (const PartTime& part : parts) named += part.total;
  if (!parts.empty() && length > named) parts.push_back({"outside of named parts", 0, length - named});
}

/// Device time by kind, with the optimizer as a separate kind; idle time last.
std::vector<PartTime> device_kinds(const Events& kernels, const Events& ranges, double idle) {
  const Stretches optimizer = stretches_of(ranges, "optimizer");
  Totals totals;
  for (const TraceEvent* kernel : kernels) {
    add(totals, optimizer.hold(*kernel) ? "optimizer" : kind_of_kernel(kernel->name), kernel->length);
  }
  std::vector<PartTime> kinds = longest_first(totals);
  kinds.push_back({"gaps", 0, idle});
  return kinds;
}

std::vector<PartTime> host_kinds(const Events& operations, const Events& ranges, double idle) {
  const Stretches optimizer = stretches_of(ranges, "optimizer");
  Totals totals;
  add_own_times(operations, totals, [&](const TraceEvent& operation) {
    return optimizer.hold(operation) ? "optimizer" : kind_of_operation(operation.name);
  });
  std::vector<PartTime> kinds = longest_first(totals);
  // A trace has events of the library's operations alone: this program's own loops show as gaps.
  kinds.push_back({"own loops, waits and gaps", 0, idle});
  return kinds;
}

}  // namespace

TraceSummary summarize(std::vector<TraceEvent> events) {
  TraceSummary summary;
  const std::vector<Window> windows = windows_of(events, summary.steps);
  const double origin = windows.front().begin;
  const int64_t main = main_thread(events);
  std::map<int64_t, Events> operations_of;
  Events ranges, main_operations, device, device_ranges;
  for (const TraceEvent& event : events) {
    if (event.kind == Kind::operation) {
      operations_of[event.thread].push_back(&event);
      if (event.thread == main) main_operations.push_back(&event);
    }
    if (event.kind == Kind::range && event.thread == main) ranges.push_back(&event);
    if (event.kind == Kind::kernel) device.push_back(&event);
    if (event.kind == Kind::device_range) device_ranges.push_back(&event);
  }
  Totals parts, operations, kernels, on_device;
  add_own_times(ranges, parts);
  for (const auto& [thread, own] : operations_of) add_own_times(own, operations);
  for (const TraceEvent* kernel : device) add(kernels, kernel->name, kernel->length);
  add_own_times(device_ranges, on_device);
  summary.has_device = !device.empty();
  summary.host_parts = longest_first(parts);
  summary.device_parts = longest_first(on_device);
  summary.operations = longest_first(operations);
  summary.kernels = longest_first(kernels);
  summary.length = total_of(windows);
  add_rest(summary.host_parts, summary.length);
  std::vector<TraceGap> host_gaps, device_gaps;
  summary.host_busy = busy_time(main_operations, windows, host_gaps, origin);
  if (summary.has_device) {
    const std::vector<Window> wide = device_windows(windows, device);
    summary.length = total_of(wide);
    summary.device_busy = busy_time(device, wide, device_gaps, origin);
  }
  summary.kinds = summary.has_device ? device_kinds(device, device_ranges, summary.length - summary.device_busy)
                                     : host_kinds(main_operations, ranges, summary.length - summary.host_busy);
  summary.gaps = summary.has_device ? std::move(device_gaps) : std::move(host_gaps);
  return summary;
}

namespace {

struct Pattern {
  std::string_view part;
  const char* kind;
};

constexpr const char* kProducts = "matrix products";
constexpr const char* kAttention = "attention";
constexpr const char* kCommunication = "communication";
constexpr const char* kCopies = "copies";
constexpr const char* kRest = "elementwise and reductions";

// The first match applies: some attention kernels have "cutlass" in their names too.
constexpr std::array kKernels{
    Pattern{"nccl", kCommunication},   Pattern{"Memcpy", kCopies},    Pattern{"Memset", kCopies},
    Pattern{"sdpa", kAttention},       Pattern{"flash", kAttention},  Pattern{"fmha", kAttention},
    Pattern{"attention", kAttention},  Pattern{"gemm", kProducts},    Pattern{"gemv", kProducts},
    Pattern{"nvjet", kProducts},       Pattern{"cutlass", kProducts}, Pattern{"xmma", kProducts},
    Pattern{"splitKreduce", kProducts}};
constexpr std::array kOperations{
    Pattern{"c10d::", kCommunication},  Pattern{"gloo:", kCommunication},   Pattern{"nccl:", kCommunication},
    Pattern{"attention", kAttention},   Pattern{"aten::mm", kProducts},     Pattern{"aten::addmm", kProducts},
    Pattern{"bmm", kProducts},          Pattern{"aten::matmul", kProducts}, Pattern{"aten::linear", kProducts},
    Pattern{"scaled_mm", kProducts},    Pattern{"mkldnn", kProducts},       Pattern{"aten::copy_", kCopies},
    Pattern{"aten::_to_copy", kCopies}, Pattern{"aten::clone", kCopies},    Pattern{"aten::contiguous", kCopies},
    Pattern{"aten::cat", kCopies}};

std::string kind_by(std::span<const Pattern> patterns, std::string_view name) {
  const auto found = std::find_if(patterns.begin(), patterns.end(), [name](const Pattern& pattern) {
    return name.find(pattern.part) != std::string_view::npos;
  });
  return found == patterns.end() ? kRest : found->kind;
}

}  // namespace

std::string kind_of_kernel(std::string_view name) { return kind_by(kKernels, name); }
std::string kind_of_operation(std::string_view name) { return kind_by(kOperations, name); }

bool Stretches::hold(const TraceEvent& event) const {
  const double middle = event.begin + event.length / 2;
  const auto after = ends_.upper_bound({event.thread, middle});
  if (after == ends_.begin()) return false;
  const auto& [place, end] = *std::prev(after);
  return place.first == event.thread && middle < end;
}

// Formats the summary of a trace.

namespace {

// With the three columns of numbers a line has 102 characters; output keeps to 120.
constexpr size_t kNameWidth = 72;

/// Kernel names can be very long; the beginning is the most informative.
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
