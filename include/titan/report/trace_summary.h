// Summary of a step's trace as text: time by part, the slowest operations, the gaps. Reads Kineto's traces (LibTorch's
// profiler and torch.profiler's) as a stream, so that memory does not grow with arguments that are not used. Knows no
// tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan {

/// Times in microseconds.
struct TraceEvent {
  enum class Kind { operation, range, step, kernel, device_range, other };

  Kind kind = Kind::other;
  std::string name;
  int64_t thread = 0;  // of a host event: its thread; of a device's: its stream
  double begin = 0;
  double length = 0;
  double end() const { return begin + length; }
};

/// The events with a length of a Chrome trace, plain or gzipped. Throws Error(bad_data) "cannot read PATH: …" and for
/// what is not a trace.
std::vector<TraceEvent> read_trace(const std::filesystem::path& path);

struct PartTime {
  std::string name;
  int64_t calls = 0;
  double total = 0;  // without what nested parts took
};

struct TraceGap {
  double length = 0;
  double begin = 0;    // after the trace's beginning
  std::string before;  // what ended when it began
  std::string after;   // what begins when it ends
};

struct TraceSummary {
  int64_t steps = 0;  // that the trace holds whole; 0: it marks none
  double length = 0;  // of them all, or of everything
  bool has_device = false;
  double host_busy = 0;                            // the main thread inside operations
  double device_busy = 0;                          // any stream inside a kernel or a copy
  std::vector<PartTime> host_parts, device_parts;  // longest first; layers.0, layers.1, … as layers.*
  std::vector<PartTime> kinds;                     // of the device's work, or the main thread's; the last one: none
  std::vector<PartTime> operations;                // of all threads, time in themselves
  std::vector<PartTime> kernels;
  std::vector<TraceGap> gaps;  // of the device, or of the main thread where there is none; longest first
};

TraceSummary summarize(std::vector<TraceEvent> events);

/// At most `top` rows a table, lines of at most 120 columns.
std::string summary_text(const TraceSummary& summary, size_t top);

// What a kernel or an operation of a trace is for, by its name: the few kinds that a step's time is made of. Private to
// report.

/// "matrix products", "attention", "communication", "copies", or "elementwise and reductions" for all else.
std::string kind_of_kernel(std::string_view name);
std::string kind_of_operation(std::string_view name);

/// Stretches of time on threads or streams.
class Stretches {
 public:
  void add(const TraceEvent& event) { ends_[{event.thread, event.begin}] = event.end(); }
  /// Whether the middle of `event` is in one of its thread.
  bool hold(const TraceEvent& event) const;

 private:
  std::map<std::pair<int64_t, double>, double> ends_;
};

}  // namespace titan
