// Summarises a step's trace as text: time by part, the slowest operations, the gaps. Reads Kineto's traces (LibTorch's
// profiler and torch.profiler's) as a stream, so that unused arguments take no memory. Knows no tensors.
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
  int64_t thread = 0;  // thread of a host event, stream of a device event
  double begin = 0;
  double length = 0;
  double end() const { return begin + length; }
};

/// The events with a duration of a Chrome trace, plain or gzipped. Throws Error(bad_data) "cannot read PATH: …", also
/// if the file is not a trace.
std::vector<TraceEvent> read_trace(const std::filesystem::path& path);

struct PartTime {
  std::string name;
  int64_t calls = 0;
  double total = 0;  // excludes nested parts
};

struct TraceGap {
  double length = 0;
  double begin = 0;    // relative to the trace's beginning
  std::string before;  // the event that ended at its beginning
  std::string after;   // the event that begins at its end
};

struct TraceSummary {
  int64_t steps = 0;  // complete steps in the trace; 0: it marks none
  double length = 0;  // of these steps, or of the whole trace
  bool has_device = false;
  double host_busy = 0;                            // time of the main thread in operations
  double device_busy = 0;                          // time with a kernel or a copy on any stream
  std::vector<PartTime> host_parts, device_parts;  // longest first; layers.0, layers.1, … as layers.*
  std::vector<PartTime> kinds;                     // of device work, or of the main thread; idle time last
  std::vector<PartTime> operations;                // of all threads, without nested operations
  std::vector<PartTime> kernels;
  std::vector<TraceGap> gaps;  // of the device, or of the main thread if there is none; longest first
};

TraceSummary summarize(std::vector<TraceEvent> events);

/// At most `top` rows per table, lines of at most 120 columns.
std::string summary_text(const TraceSummary& summary, size_t top);

// Classifies the kernels or operations of a trace by name into a few kinds. Private to report.

/// "matrix products", "attention", "communication", "copies", or "elementwise and reductions" for everything else.
std::string kind_of_kernel(std::string_view name);
std::string kind_of_operation(std::string_view name);

/// Time intervals on threads or streams.
class Stretches {
 public:
  void add(const TraceEvent& event) { ends_[{event.thread, event.begin}] = event.end(); }
  /// True if the middle of `event` is in an interval of the event's thread.
  bool hold(const TraceEvent& event) const;

 private:
  std::map<std::pair<int64_t, double>, double> ends_;
};

}  // namespace titan
