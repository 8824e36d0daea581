// A final callback for a process that a thread other than main ends: the abort watcher, a signal's time limit. The main
// thread may hang and block the callback, so the ending thread waits only briefly.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace titan {

class FinalMessage {
 public:
  /// Short enough not to trip a launcher's own timeout.
  static constexpr std::chrono::milliseconds kLimit{500};

  FinalMessage();

  /// Runs the callback on a new thread and waits until it is done, at most for `limit` or the rest of an earlier call's
  /// limit, so that concurrent failures share one wait. The callback runs at most once; without a callback, or if no
  /// thread can be started, does nothing. Never throws; drops exceptions of the callback.
  void print(std::chrono::milliseconds limit = kLimit) const;

 private:
  friend class FinalMessagePart;
  struct State;
  std::shared_ptr<State> state_;
};

/// Scoped registration of `print` as the callback of `last` (may be null). The destructor waits for a running callback.
class FinalMessagePart {
 public:
  FinalMessagePart(std::shared_ptr<FinalMessage> last, std::function<void()> print);
  ~FinalMessagePart();
  FinalMessagePart(const FinalMessagePart&) = delete;
  FinalMessagePart& operator=(const FinalMessagePart&) = delete;

 private:
  void set(std::function<void()> print) const;

  std::shared_ptr<FinalMessage> last_;
};

}  // namespace titan
