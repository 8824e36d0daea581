#include "titan/base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>

#include "titan/base/console_writer.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr std::string_view kAfterLevel = " - ";
constexpr const char* kLine = "[titan] %Y-%m-%d %H:%M:%S,%e - root - %^%v%$";

void print_error(const std::string& prefix, const char* kind, std::string_view text) {
  const std::string line = fmt::format("{}{}{}: {}\n", line_start(STDERR_FILENO), prefix, kind, text);
  standard_error().write(line);
}

ConsoleWriter& writer_of(const std::FILE* console) { return console == stdout ? standard_output() : standard_error(); }

/// Appends to a file that is created with the first line: a rank that never starts leaves no file. A full disk causes
/// lost lines and one warning; the run continues.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FileSink(std::filesystem::path path, std::string prefix) : path_(std::move(path)), prefix_(std::move(prefix)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::error_code no_folder;
    if (!file_) {
      std::filesystem::create_directories(path_.parent_path(), no_folder);
      file_.emplace(path_);
    }
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    // Without the formatter's newline: append_line adds one, and a second would leave an empty line after each.
    if (file_->append_line({line.data(), line.size() - 1}) || warned_) return;
    warned_ = true;
    const std::string reason = no_folder ? no_folder.message() : file_->last_error();
    print_error(prefix_, "warning",
                fmt::format("this rank's log is not being written to {}: {}; the run continues without it",
                            printable(path_.string()), reason));
  }
  void flush_() override {}

 private:
  std::filesystem::path path_;
  std::string prefix_;
  std::optional<AppendFile> file_;
  bool warned_ = false;
};

/// Prints lines without time and level, in the format of the errors that `main` prints.
class ErrorSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ErrorSink(std::string prefix) : prefix_(std::move(prefix)) { set_level(spdlog::level::warn); }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const std::string_view text = payload.substr(payload.find(kAfterLevel) + kAfterLevel.size());
    const char* kind = message.level == spdlog::level::warn ? "warning" : "titan_train";
    print_error(prefix_, kind, text);
  }
  void flush_() override {}

 private:
  std::string prefix_;
};

constexpr std::string_view kPlain = "\x1b[m";

std::string_view colour_of(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";
  return level >= spdlog::level::err ? "\x1b[31m\x1b[1m" : "";
}

/// `line` is the formatted message.
std::string painted_line(const spdlog::details::log_msg& message, std::string_view line, bool colour) {
  const std::string_view paint = colour ? colour_of(message.level) : std::string_view();
  if (paint.empty() || message.color_range_end <= message.color_range_start) return std::string(line);
  std::string text(line.substr(0, message.color_range_start));
  text += paint;
  text += line.substr(message.color_range_start, message.color_range_end - message.color_range_start);
  text += kPlain;
  text += line.substr(message.color_range_end);
  return text;
}

/// Standard output or standard error without a status line.
class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ConsoleSink(ConsoleWriter& writer, bool colour) : writer_(writer), colour_(colour) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    writer_.write(painted_line(message, {formatted.data(), formatted.size()}, colour_));
  }
  void flush_() override {}

 private:
  ConsoleWriter& writer_;
  bool colour_;
};

spdlog::sink_ptr console_sink(const LogTargets& targets, const std::shared_ptr<TerminalSink>& terminal) {
  if (terminal) return terminal;
  if (targets.to_errors) return std::make_shared<ConsoleSink>(standard_error(), false);
  return std::make_shared<ConsoleSink>(standard_output(), targets.colour);
}

}  // namespace

Log::Log(const LogTargets& targets)
    : colour_(targets.console && targets.colour), speaks_for_all_(!targets.error_prefix) {
  logger_ = std::make_shared<spdlog::logger>("titan");
  auto& sinks = logger_->sinks();
  if (targets.console) {
    if (targets.terminal && !targets.quiet) terminal_ = std::make_shared<TerminalSink>(targets.colour);
    sinks.push_back(console_sink(targets, terminal_));
    if (targets.quiet) sinks.back()->set_level(spdlog::level::warn);
    console_ = targets.to_errors ? stderr : stdout;
  }
  if (!targets.file.empty()) {
    sinks.push_back(std::make_shared<FileSink>(targets.file, targets.error_prefix.value_or("")));
  }
  if (targets.error_prefix) sinks.push_back(std::make_shared<ErrorSink>(*targets.error_prefix));
  if (console_ && !targets.file_instead.empty()) {
    file_instead_ = targets.file_instead;
    sink_instead_ = std::make_shared<FileSink>(file_instead_, "");
    sink_instead_->set_level(spdlog::level::off);
    sinks.push_back(sink_instead_);
  }
  logger_->set_pattern(kLine);
  logger_->flush_on(spdlog::level::info);
}

Log::~Log() = default;

bool Log::is_silenced() const {
  const std::thread::id only = only_thread_;
  return only != std::thread::id() && only != std::this_thread::get_id();
}

void Log::write(spdlog::level::level_enum level, std::string_view kind, std::string_view text) const {
  if (is_silenced()) return;
  const std::string line = fmt::format("{}{}{}", kind, kAfterLevel, text);
  if (console_) writer_of(console_).take_left_out();
  logger_->log(level, line);
  check_console(level, line);
}

void Log::check_console(spdlog::level::level_enum level, const std::string& line) const {
  if (!console_ || !writer_of(console_).take_left_out()) return;
  if (sink_instead_) sink_instead_->log(spdlog::details::log_msg(logger_->name(), level, line));
  const ConsoleWriter& writer = writer_of(console_);
  const std::string reason = writer.is_broken() ? writer.problem() : "its reader stopped reading";
  const std::string what =
      fmt::format("standard {} could not be written ({})", console_ == stdout ? "output" : "error", reason);
  const std::string file = printable(file_instead_.string());
  const std::string continues = sink_instead_ ? fmt::format("; the log continues in {}", file) : "";
  if (!console_lost_.exchange(true)) print_error("", "warning", what + continues);
  const std::lock_guard<std::mutex> lock(mutex_);
  // A reader that stopped may read again, so the lines in between are counted.
  console_problem_ = writer.is_broken() ? what + continues
                     : sink_instead_ ? fmt::format("{}; {} lines of the log are in {}", what, writer.left_out(), file)
                                     : fmt::format("{}; {} lines of the log are lost", what, writer.left_out());
}

std::string Log::console_problem() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ConsoleWriter& errors = standard_error();
  if (console_ == stderr || errors.left_out() == 0) return console_problem_;
  return fmt::format("{}{}standard error could not be written ({}); lines lost: {}", console_problem_,
                     console_problem_.empty() ? "" : "; ",
                     errors.is_broken() ? errors.problem() : "its reader stopped reading", errors.left_out());
}

void Log::info(std::string_view message) const { write(spdlog::level::info, "INFO", printable_lines(message)); }
void Log::painted(std::string_view line) const { write(spdlog::level::info, "INFO", line); }
void Log::warning(std::string_view message) const { write(spdlog::level::warn, "WARNING", printable_lines(message)); }
void Log::error(std::string_view message) const { write(spdlog::level::err, "ERROR", printable_lines(message)); }
void Log::status(std::string_view line) const {
  if (terminal_ && !is_silenced() && standard_output().has_room()) terminal_->show(line);
}
void Log::flush() const { logger_->flush(); }

namespace {

// Width of the status line currently on this process's terminal.
std::atomic<size_t> shown_columns = 0;

/// Overwrites the status line with blanks, because output without colours must have no escape codes. Two more blanks
/// cover the ^C that a terminal echoes.
std::string wiped(size_t columns) { return columns == 0 ? "" : "\r" + std::string(columns + 2, ' ') + "\r"; }

}  // namespace

std::string line_start(int descriptor) { return ::isatty(descriptor) == 0 ? "" : wiped(shown_columns); }

void TerminalSink::show(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line == status_) return;
  const std::string before = wiped(shown_columns);
  status_ = line;
  shown_columns = status_.size();
  standard_output().write(before + status_);
}

void TerminalSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  const std::string_view line(formatted.data(), formatted.size());
  standard_output().write(wiped(shown_columns) + painted_line(message, line, colour_) + status_);
}

}  // namespace titan
