#include "terminal_sink.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace titan {
namespace {

constexpr std::string_view kPlain = "\x1b[m";

std::string_view colour_of(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";
  return level >= spdlog::level::err ? "\x1b[31m\x1b[1m" : "";
}

// Columns of the status line that stands on this process's terminal.
std::atomic<size_t> shown_columns = 0;

/// Blanks, not an escape code: whoever switches colours off gets none at all. Two more for the ^C that a terminal
/// shows.
std::string wiped(size_t columns) { return columns == 0 ? "" : "\r" + std::string(columns + 2, ' ') + "\r"; }

/// At once, so that no other writer's text comes between.
void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::string line_start(int descriptor) { return ::isatty(descriptor) == 0 ? "" : wiped(shown_columns); }

void TerminalSink::show(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line == status_) return;
  const std::string before = wiped(shown_columns);
  status_ = line;
  shown_columns = status_.size();
  put(before + status_);
}

void TerminalSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  const std::string_view line(formatted.data(), formatted.size());
  std::string text = wiped(shown_columns);
  const std::string_view paint = colour_ ? colour_of(message.level) : std::string_view();
  if (!paint.empty() && message.color_range_end > message.color_range_start) {
    text += line.substr(0, message.color_range_start);
    text += paint;
    text += line.substr(message.color_range_start, message.color_range_end - message.color_range_start);
    text += kPlain;
    text += line.substr(message.color_range_end);
  } else {
    text += line;
  }
  put(text + status_);
}

}  // namespace titan
