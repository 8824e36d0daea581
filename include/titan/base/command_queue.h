// Shell commands that run beside the program, one after the other. Knows nothing of what they are for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// `command` with every `{dir}`-like `mark` replaced by `value` so that the shell takes it as it is, whatever
/// characters it holds and whether the mark stands bare or between quotes. A command substitution between double quotes
/// is not followed: a mark in "$(…)" is quoted as if it stood in the double quotes themselves.
std::string command_with(std::string_view command, std::string_view mark, std::string_view value);

class CommandQueue {
 public:
  /// `ended` hears of each command and its exit code: 128 + signal when one killed it, 127 when there is no shell.
  explicit CommandQueue(std::function<void(const std::string& command, int code)> ended);
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  /// Starts it now, or when those before it have ended: the next call of anything here sees to that. From any thread.
  /// `name` is what `waiting` calls it.
  void submit(std::string command, std::string name = {});
  /// Takes note of what has ended, and starts what waits; whether all have ended.
  bool poll();
  /// Waits until all have ended, this long at most; whether they have. What runs then goes on by itself when the queue
  /// is gone.
  bool finish_within(std::chrono::milliseconds most);
  /// The names of those that have not ended, the first one running.
  std::vector<std::string> waiting();

 private:
  std::function<void(const std::string&, int)> ended_;
  std::mutex mutex_;
  struct Command {
    std::string words, name;
  };
  std::deque<Command> commands_;  // the first one runs, once it has a process
  pid_t process_ = 0;
};

}  // namespace titan
