// The program's log: made once in `main`, passed by reference to whoever speaks to the user.
// One line per call, on standard output, in torchtitan's shape; spdlog behind it, so no header of it leaks.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace titan {

class Log {
 public:
  /// `colour`: ANSI colours for warnings and errors; `prefix`: put before every message (empty, or "[rank 3] ").
  explicit Log(bool colour = false, std::string prefix = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void info(std::string_view message) const;
  void warning(std::string_view message) const;
  void error(std::string_view message) const;

  template <class First, class... Rest>
  void info(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) const {
    info(std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
  }
  template <class First, class... Rest>
  void warning(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) const {
    warning(std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
  }
  void flush() const;
  bool colour() const { return colour_; }

 private:
  bool colour_;
  std::string prefix_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace titan
