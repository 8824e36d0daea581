// Runs shell commands in the background, one after the other.
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
  /// `ended`: called with each command and its exit code: 128 + signal if killed, 127 if there is no shell.
  explicit CommandQueue(std::function<void(const std::string& command, int code)> ended);
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  /// Starts the command now or, if others are queued, in a later call of this class once they have ended. Thread-safe.
  /// `name`: shown by `waiting`.
  void submit(std::string command, std::string name = {});
  /// Collects ended commands and starts the next one. Returns true if all have ended.
  bool poll();
  /// Waits at most `most` for all commands. Returns true if all have ended; a command still running outlives the queue.
  bool finish_within(std::chrono::milliseconds most);
  /// The names of the commands that have not ended, the running one first.
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
