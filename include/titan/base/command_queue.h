// Shell commands that run beside the program, one after the other. Knows nothing of what they are for.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <queue>
#include <string>
#include <string_view>

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
  void submit(std::string command);
  /// Takes note of what has ended, and starts what waits.
  void poll() { advance(/*wait=*/false); }
  /// Returns when all have ended. Without this, what runs goes on by itself when the queue is gone.
  void finish() { advance(/*wait=*/true); }

 private:
  void advance(bool wait);

  std::function<void(const std::string&, int)> ended_;
  std::mutex mutex_;
  std::queue<std::string> commands_;  // the first one runs, once it has a process
  pid_t process_ = 0;
};

}  // namespace titan
