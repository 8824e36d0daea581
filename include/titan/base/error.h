// Errors that end a run, and their exit codes. Only `main` exits, or a watcher thread while `main` is blocked
// (docs/architecture.md); all other code throws. Owned by base; knows nothing of configs or tensors.
#pragma once

#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <string_view>

namespace titan {

/// The process's exit codes: part of the interface (launchers and schedulers read them).
enum class ExitCode : int {
  success = 0,
  bad_config = 64,
  bad_data = 65,
  launcher = 69,
  bug = 70,
  out_of_memory = 71,
  non_finite = 72,
  storage = 73,
  peer_failure = 74,
  requeue = 75,
  hang = 76,
  silent_corruption = 77,
  not_started = 127,
  interrupted = 130,
};

/// A failure with a message for the user: what is wrong, where, and what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Returns `act()`. Appends "; `remedy`" to the message of an Error that it throws: the caller often knows the remedy
/// better than the failing code.
template <class Act>
auto with_remedy(std::string_view remedy, const Act& act) {
  try {
    return act();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}; {}", error.what(), remedy));
  }
}

/// A broken invariant of the program itself (exit code 70): the message has the condition, values and source line.
class InvariantError : public Error {
 public:
  explicit InvariantError(const std::string& message) : Error(ExitCode::bug, message) {}
};

namespace detail {
[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& values);

inline std::string describe_values(const char*) { return {}; }
template <class... Values>
std::string describe_values(const char* names, const Values&... values) {
  std::string text = fmt::format(" ({} =", names);
  ((text += fmt::format(" {}", values)), ...);
  return text + ")";
}
}  // namespace detail

/// Throws InvariantError unless `condition` holds; the message has the values that follow, with their expressions.
#define TITAN_CHECK(condition, ...)                                                                           \
  do {                                                                                                        \
    if (!(condition)) [[unlikely]]                                                                            \
      ::titan::detail::fail_check(#condition, __FILE__, __LINE__,                                             \
                                  ::titan::detail::describe_values(#__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

/// Whether a library's message reports that host or device memory is exhausted.
bool reports_out_of_memory(std::string_view message);

}  // namespace titan
