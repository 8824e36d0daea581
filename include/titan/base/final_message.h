// What is still to be said when a process is ended by a thread other than the one that works: the watch over the ranks,
// a signal's limit. The working thread may hang for ever and may be what is waited for; so whoever ends the process
// waits a moment for the words, and no longer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace titan {

class FinalMessage {
 public:
  /// A pause of this length before the end disturbs no launcher.
  static constexpr std::chrono::milliseconds kLimit{500};

  FinalMessage();

  /// Has the words said, on a thread of its own; returns once that is done, at the latest after `limit`, or after what
  /// is left of an earlier call's: several failures that one end brings wait once. Words are said once; where there are
  /// none, or no thread can be had, nothing is. Throws nothing, and what they throw is dropped.
  void say(std::chrono::milliseconds limit = kLimit) const;

 private:
  friend class FinalMessagePart;
  struct State;
  std::shared_ptr<State> state_;
};

/// While it lives, `words` are what `last` says. Null: nobody ends this process. Its end waits for words being said.
class FinalMessagePart {
 public:
  FinalMessagePart(std::shared_ptr<FinalMessage> last, std::function<void()> words);
  ~FinalMessagePart();
  FinalMessagePart(const FinalMessagePart&) = delete;
  FinalMessagePart& operator=(const FinalMessagePart&) = delete;

 private:
  void set(std::function<void()> words) const;

  std::shared_ptr<FinalMessage> last_;
};

}  // namespace titan
