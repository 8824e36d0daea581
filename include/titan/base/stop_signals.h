// Stop and save requests by signal, received by a dedicated thread. No signal handler may run on a compute thread:
// oneDNN's matrix kernels point the stack pointer into heap buffers, and a handler's frame would overwrite the memory
// below it.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace titan {

/// Stores the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 for loops to poll. If the process is still running 4 s after a
/// SIGINT (a person waits) or 25 s after a SIGTERM (a scheduler kills after 30 s) or a SIGHUP (the terminal is gone),
/// it is ended with exit code 130 and a message; SIGUSR1 has no limit. A SIGHUP that is ignored when the object is made
/// (nohup) stays ignored. A SIGINT after the first signal ends it at once; on a terminal, the first one prints a hint
/// about this. SIGUSR2 only requests a checkpoint. The main thread creates the single object before other threads: the
/// signals are blocked in this thread and in those that it starts. A thread that existed before forwards a signal. The
/// destructor restores the previous state.
class StopSignals {
 public:
  /// `before_end` is called on the signal thread before this object ends the process.
  explicit StopSignals(std::function<void()> before_end = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// How long the process may run after `signal`, if it came first; nullopt: no limit.
  static std::optional<std::chrono::seconds> limit(int signal);
  /// The number of the first stop signal, or 0.
  static int received();
  /// Whether a stop signal has been sent to this process, received or still pending: true if it was sent before an
  /// event that the caller has observed. For callers about to exit anyway; may take 0.2 s.
  static bool was_sent();
  /// Whether SIGUSR2 has arrived since the last call.
  static bool take_save_request();
  /// From now on there is something to save: extends a SIGINT's limit to a SIGTERM's.
  static void allow_for_saving();
  /// `requested`, reduced to leave the process time to exit normally before the limit.
  static std::chrono::milliseconds time_for(std::chrono::milliseconds requested);

 private:
  void watch() const;
  [[noreturn]] void end_now(std::string_view line) const;

  std::function<void()> before_end_;
  sigset_t mask_before_{};
  std::vector<std::pair<int, struct sigaction>> before_;  // what each handled signal did
  int signals_ = -1;                                      // a signalfd, read by the thread
  int end_ = -1;                                          // an eventfd that stops the thread
  std::thread thread_;
};

}  // namespace titan
