// The program's log: created once in `main` and passed by reference to the parts that report to the user. One line per
// call, in torchtitan's format: on standard output, or in a separate file for ranks other than 0. Control characters in
// a message are escaped (titan/base/text.h). Built on spdlog.
#pragma once

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace spdlog {
class logger;
}

namespace titan {

class TerminalSink;

/// Destinations of one rank's log lines.
struct LogTargets {
  bool console = true;
  bool colour = false;           ///< ANSI colours for warnings and errors on the console
  bool terminal = false;         ///< the console is a terminal: it can show a status line
  bool to_errors = false;        ///< log to standard error: standard output holds a command's result
  bool quiet = false;            ///< only warnings and errors on the console, and no status line
  std::filesystem::path file{};  ///< appended to; created with its folders at the first line; empty: no file
  /// Takes over when the console cannot be written (a closed pipe, a full disk, a terminal that is gone); empty: lines
  /// are lost.
  std::filesystem::path file_instead{};
  /// If set, warnings and errors also go to standard error, with this prefix ("[rank 3] ").
  std::optional<std::string> error_prefix{};
};

class Log {
 public:
  explicit Log(const LogTargets& targets = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void info(std::string_view message) const;
  /// Like info, for a line that already contains colour codes and no external text: it is not escaped.
  void painted(std::string_view line) const;
  void warning(std::string_view message) const;
  void error(std::string_view message) const;
  /// A warning that every rank would print: rank 0 (no error_prefix) warns, the others log it as info.
  void shared_warning(std::string_view message) const { speaks_for_all_ ? warning(message) : info(message); }

  template <class First, class... Rest>
  void info(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) const {
    info(std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
  }
  template <class First, class... Rest>
  void warning(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) const {
    warning(std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
  }
  template <class First, class... Rest>
  void shared_warning(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) const {
    shared_warning(std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
  }
  /// Shows `line` below the newest line of a terminal and replaces the previous status; empty: none. Ignored without a
  /// terminal (shows_status).
  void status(std::string_view line) const;
  bool shows_status() const { return terminal_ != nullptr; }
  void flush() const;
  bool colour() const { return colour_; }
  /// Why the console is no longer written, and where the log continues; empty: it is written.
  std::string console_problem() const;
  /// From now on only the calling thread's lines are written: it is about to end the process, and its message must be
  /// the last line.
  void silence_other_threads() const { only_thread_ = std::this_thread::get_id(); }

 private:
  bool is_silenced() const;
  void write(spdlog::level::level_enum level, std::string_view kind, std::string_view text) const;

  /// Turns to `file_instead` if a write to the console has failed; `line` is the first that is not there.
  void check_console(spdlog::level::level_enum level, const std::string& line) const;

  mutable std::atomic<std::thread::id> only_thread_{};  // none: all threads may log
  std::FILE* console_ = nullptr;                        // of the first sink; null: no console
  std::filesystem::path file_instead_;
  spdlog::sink_ptr sink_instead_;  // null: none
  mutable std::mutex mutex_;       // of the problem
  mutable std::string console_problem_;
  mutable std::atomic<bool> console_lost_ = false;
  bool colour_;
  bool speaks_for_all_;
  std::shared_ptr<TerminalSink> terminal_;  // null: no terminal
  std::shared_ptr<spdlog::logger> logger_;
};

// The console sink for a terminal: lines scroll, and the status line below the newest one is rewritten in place.
// Private to base: only Log has one.

/// Prefix for a line written to the terminal without the sink: it erases the status line. Empty if there is none, or if
/// `descriptor` is not a terminal.
std::string line_start(int descriptor);

class TerminalSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit TerminalSink(bool colour) : colour_(colour) {}
  /// Erases the status line.
  ~TerminalSink() override { show({}); }

  /// Sets the status line; empty: none.
  void show(std::string_view line);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  bool colour_;
  std::string status_;
};

}  // namespace titan
