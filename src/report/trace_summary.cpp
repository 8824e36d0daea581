#include "titan/report/trace_summary.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "trace_kinds.h"

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

/// Adds up under its name what each event takes by itself. On one thread events lie inside each other or apart.
void add_own_times(Events events, Totals& totals, const NameOf& name_of = own_name) {
  by_time(events);
  std::vector<std::pair<const TraceEvent*, double>> open;  // with what its children took
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

/// How long any of `events` goes on inside the windows, and the gaps between them.
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

/// The thread that the steps are marked on; else the one that is longest in operations.
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

/// A device goes on with a step's work after the host has enqueued it: its windows reach to the next step, the last to
/// its last kernel.
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
  double told = 0;
  for (const PartTime& part : parts) told += part.total;
  if (!parts.empty() && length > told) parts.push_back({"outside of named parts", 0, length - told});
}

/// By kind, what an optimizer does being one of its own; last, what nothing happens in.
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
  // Loops of this program are no operations of the library.
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

}  // namespace titan
