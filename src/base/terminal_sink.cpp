#include "terminal_sink.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace titan {
namespace {

constexpr std::string_view kErase = "\r\x1b[K";
constexpr std::string_view kPlain = "\x1b[m";

std::string_view colour_of(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";
  return level >= spdlog::level::err ? "\x1b[31m\x1b[1m" : "";
}

/// At once, so that no other writer's text comes between.
void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::string_view line_start(int descriptor) {
  if (::isatty(descriptor) == 0) return {};
  const char* const kind = std::getenv("TERM");
  return kind && std::string_view(kind) == "dumb" ? std::string_view() : kErase;
}

void TerminalSink::show(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line == status_) return;
  status_ = line;
  put(std::string(kErase) + status_);
}

void TerminalSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  const std::string_view line(formatted.data(), formatted.size());
  std::string text;
  if (!status_.empty()) text += kErase;
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
