// The wish to stop or to save: signals, taken by a thread that does nothing else. No code of ours runs inside a signal
// handler of a computing thread: matrix kernels of LibTorch's oneDNN let the stack pointer point into their heap
// buffers, and a handler there would overwrite what is below.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

namespace titan {

/// Turns the first SIGINT, SIGTERM or SIGUSR1 into a number that loops look at. When the process has not ended 4 s
/// after a SIGINT (a person waits), or 25 s after a SIGTERM (a scheduler kills after 30), it is ended with exit code
/// 130 and a line that says so; SIGUSR1 sets no limit. A SIGINT after the first signal ends it at once,
/// and on a terminal the first one says so. SIGUSR2 asks for a checkpoint and for nothing else. One object lives in the
/// main thread, made before other threads: these signals are blocked in this thread and in those that it starts. A
/// thread that was there before passes a signal on. Everything is as it was when the object goes.
class StopSignals {
 public:
  /// `before_end` is called, on the thread that takes the signals, before this object ends the process.
  explicit StopSignals(std::function<void()> before_end = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// How long the process may go on after this signal has come first; none for one that sets no limit.
  static std::optional<std::chrono::seconds> limit(int signal);
  /// 0, or the number of the first signal that asks to stop.
  static int received();
  /// Whether one has been sent to this process, taken or not: true for sure when its sending came before, seen by
  /// whoever learns of something that was done after it. For those about to end anyway; may take 0.2 s.
  static bool was_sent();
  /// Whether SIGUSR2 has come since the last call.
  static bool take_save_request();
  /// What is left to do, the last checkpoint, is worth waiting for: a SIGINT's limit becomes a SIGTERM's.
  static void allow_for_saving();
  /// How much of `wish` is left for something that is worth waiting for, so that the process can then end by itself.
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
