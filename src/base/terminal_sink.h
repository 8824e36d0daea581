// The console of a log when it is a terminal: lines scroll, and below the newest one stands a status line that is
// rewritten in place. Private to base: Log alone has one.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <string>
#include <string_view>

namespace titan {

/// What is written before a line that goes to the terminal past the sink: it wipes the status line that may stand
/// there. Empty when none does, or `descriptor` is no terminal.
std::string line_start(int descriptor);

class TerminalSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit TerminalSink(bool colour) : colour_(colour) {}
  /// Leaves no status line behind.
  ~TerminalSink() override { show({}); }

  /// `line` below the lines from now on; empty: none.
  void show(std::string_view line);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  bool colour_;
  std::string status_;
};

}  // namespace titan
