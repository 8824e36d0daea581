// Stop and save requests by signal, received by a dedicated thread. No signal handler runs on a computing thread:
// oneDNN's matrix kernels let the stack pointer point into their heap buffers, and a handler's frame would overwrite
// memory below it.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

namespace titan {

/// Turns the first SIGINT, SIGTERM or SIGUSR1 into a number that loops poll. When the process has not ended 4 s
/// after a SIGINT (a person waits), or 25 s after a SIGTERM (a scheduler kills after 30), it is ended with exit code
/// 130 and a line that says so; SIGUSR1 sets no limit. A SIGINT after the first signal ends it at once,
/// and on a terminal the first one says so. SIGUSR2 asks for a checkpoint and for nothing else. One object lives in the
/// main thread, made before other threads: these signals are blocked in this thread and in those that it starts. A
/// thread that was there before passes a signal on. The destructor restores the previous state.
class StopSignals {
 public:
  /// `before_end` is called, on the thread that takes the signals, before this object ends the process.
  explicit StopSignals(std::function<void()> before_end = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// How long the process may run after `signal` came first; nullopt for a signal without a limit.
  static std::optional<std::chrono::seconds> limit(int signal);
  /// 0, or the number of the first signal that asks to stop.
  static int received();
  /// Whether a stop signal has been sent to this process, received or still pending: true if the sending happened
  /// before an event that the caller has observed. For callers about to exit anyway; may take 0.2 s.
  static bool was_sent();
  /// Whether SIGUSR2 has come since the last call.
  static bool take_save_request();
  /// Raises a SIGINT's limit to a SIGTERM's, for the final checkpoint.
  static void allow_for_saving();
  /// The part of `wish` that fits before the limit and leaves the process time to exit normally.
  static std::chrono::milliseconds time_for(std::chrono::milliseconds wish);

 private:
  void watch() const;
  [[noreturn]] void end_now(std::string_view line) const;

  std::function<void()> before_end_;
  sigset_t mask_before_{};
  int signals_ = -1;  // a signalfd, read by the thread
  int end_ = -1;      // an eventfd: the thread ends
  std::thread thread_;
};

}  // namespace titan
