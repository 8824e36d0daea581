// The status line at the bottom of a terminal during a run: step, throughput, time left.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "titan/base/log.h"
#include "titan/report/step_report.h"

namespace titan {

/// One line of at most `width` ASCII characters; fields that do not fit are dropped, least important first.
std::string status_line(const StepReport& report, size_t width);

/// Shows the line on the log's terminal, at most ten times per second. Does nothing without a terminal.
class StatusDisplay {
 public:
  explicit StatusDisplay(const Log& log) : log_(log) {}
  bool is_due() const;
  void show(const StepReport& report);

 private:
  const Log& log_;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace titan
