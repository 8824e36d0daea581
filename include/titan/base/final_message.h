// A last callback for a process that is ended by another thread than the main one: the abort watcher, a signal's time
// limit. The main thread may hang for ever and the callback may block on it, so the ending thread waits only briefly.
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

  /// Runs the callback on a new thread; returns when it is done, at the latest after `limit` or the rest of an earlier
  /// call's limit, so that several failures together wait once. The callback runs at most once; without a callback, or
  /// when no thread can be started, does nothing. Never throws; drops exceptions of the callback.
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
