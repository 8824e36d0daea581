// Runs shell commands in the background, one at a time.
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

/// `command` with every mark (such as `{dir}`) replaced by `value`, escaped so that the shell reads it literally,
/// whether the mark is unquoted or inside quotes. Command substitutions inside double quotes are not parsed: a mark in
/// "$(…)" is escaped as if it were directly in the double quotes.
std::string command_with(std::string_view command, std::string_view mark, std::string_view value);

class CommandQueue {
 public:
  /// `ended` is called with each command and its exit code: 128 + signal if killed, 127 if there is no shell.
  explicit CommandQueue(std::function<void(const std::string& command, int code)> ended);
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  /// Starts the command now or, if others are queued, in a later call to this class after they end. Thread-safe. `name`
  /// is shown by `waiting`.
  void submit(std::string command, std::string name = {});
  /// Reaps ended commands and starts the next one. Returns true if all have ended.
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
  std::deque<Command> commands_;  // the first one is running if process_ is set
  pid_t process_ = 0;
};

}  // namespace titan
