// What is still to be said when a process is ended by a thread other than the one that works: the watch over the ranks,
// a signal's limit. The working thread may hang for ever and may be what is waited for; so whoever ends the process
// waits a moment for the words, and no longer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace titan {

class LastWords {
 public:
  /// A pause of this length before the end disturbs no launcher.
  static constexpr std::chrono::milliseconds kLimit{500};

  LastWords();

  /// Has the words said, on a thread of its own; returns once that is done, at the latest after `limit`, or after what
  /// is left of an earlier call's: several failures that one end brings wait once. Words are said once; where there are
  /// none, or no thread can be had, nothing is. Throws nothing, and what they throw is dropped.
  void say(std::chrono::milliseconds limit = kLimit) const;

 private:
  friend class WordsToSay;
  struct State;
  std::shared_ptr<State> state_;
};

/// While it lives, `words` are what `last` says. Null: nobody ends this process. Its end waits for words being said.
class WordsToSay {
 public:
  WordsToSay(std::shared_ptr<LastWords> last, std::function<void()> words);
  ~WordsToSay();
  WordsToSay(const WordsToSay&) = delete;
  WordsToSay& operator=(const WordsToSay&) = delete;

 private:
  void set(std::function<void()> words) const;

  std::shared_ptr<LastWords> last_;
};

}  // namespace titan
