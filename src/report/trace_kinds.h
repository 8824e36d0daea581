// What a kernel or an operation of a trace is for, by its name: the few kinds that a step's time is made of. Private to
// report.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "titan/report/trace_summary.h"

namespace titan {

/// "matrix products", "attention", "communication", "copies", or "elementwise and reductions" for all else.
std::string kind_of_kernel(std::string_view name);
std::string kind_of_operation(std::string_view name);

/// Stretches of time on threads or streams.
class Stretches {
 public:
  void add(const TraceEvent& event) { ends_[{event.thread, event.begin}] = event.end(); }
  /// Whether the middle of `event` lies in one of its thread.
  bool hold(const TraceEvent& event) const;

 private:
  std::map<std::pair<int64_t, double>, double> ends_;
};

}  // namespace titan
