// The program's log: created once in `main` and passed by reference to the parts that report to the user.
// One line per call, in torchtitan's shape: on standard output, or for a rank other than 0 in a file of its own.
// Control characters in a message are escaped (titan/base/text.h). It is made of spdlog.
#pragma once

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <atomic>
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

/// Where one rank's lines go.
struct LogTargets {
  bool console = true;
  bool colour = false;           ///< ANSI colours for warnings and errors on the console
  bool terminal = false;         ///< the console is a terminal: a status line may stand below the lines
  bool to_errors = false;        ///< the console is standard error: standard output has a command's result
  bool quiet = false;            ///< warnings and errors alone on the console, and no status line
  std::filesystem::path file{};  ///< appended to, made with its folders at the first line; empty: none
  /// When given, warnings and errors go to standard error, too, with this before them ("[rank 3] ").
  std::optional<std::string> error_prefix{};
};

class Log {
 public:
  explicit Log(const LogTargets& targets = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void info(std::string_view message) const;
  /// As info, for a line that this program has coloured, and that holds nothing from outside.
  void painted(std::string_view line) const;
  void warning(std::string_view message) const;
  void error(std::string_view message) const;
  /// A warning that every rank would print: rank 0 warns (without error_prefix), the others log it as info.
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
  /// Shows `line` below the newest line of a terminal, in place of the status before; empty: nothing. Ignored where
  /// there is no terminal (shows_status).
  void status(std::string_view line) const;
  bool shows_status() const { return terminal_ != nullptr; }
  void flush() const;
  bool colour() const { return colour_; }
  /// From now on the calling thread's lines alone are written: it is about to end the process, and what it logs must be
  /// the last line.
  void silence_other_threads() const { only_thread_ = std::this_thread::get_id(); }

 private:
  bool is_silenced() const;
  void write(spdlog::level::level_enum level, std::string_view kind, std::string_view text) const;

  mutable std::atomic<std::thread::id> only_thread_{};  // none: all threads' lines are written
  bool colour_;
  bool speaks_for_all_;
  std::shared_ptr<TerminalSink> terminal_;  // null: none
  std::shared_ptr<spdlog::logger> logger_;
};

// The console of a log when it is a terminal: lines scroll, and below the newest one is a status line that is
// rewritten in place. Private to base: Log alone has one.

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
