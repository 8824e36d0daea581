#include "titan/base/command_queue.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace titan {
namespace {

constexpr int kNoShell = 127;  // as a shell answers to a command that it does not find

/// `value` escaped for the shell, where the quote `open` precedes it ('\0': no quote).
std::string for_shell(std::string_view value, char open) {
  const bool is_plain =
      value.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+,=@%:") ==
      std::string_view::npos;
  if (is_plain && !value.empty()) return std::string(value);
  std::string written;
  for (const char c : value) {
    if (open != '"' && c == '\'') {
      written += R"('\'')";
    } else if (open == '"' && std::string_view("\"$`\\").find(c) != std::string_view::npos) {
      written += {'\\', c};
    } else {
      written += c;
    }
  }
  return open == '\0' ? "'" + written + "'" : written;
}

/// Starts the shell with default signal handling and returns its process, or 0 if it cannot be started.
pid_t start(std::string command) {
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh";
  std::string option = "-c";
  std::array<char*, 4> arguments{shell.data(), option.data(), command.data(), nullptr};
  pid_t process = 0;
  const int problem = ::posix_spawn(&process, "/bin/sh", nullptr, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  return problem == 0 ? process : 0;
}

}  // namespace

std::string command_with(std::string_view command, std::string_view mark, std::string_view value) {
  std::string all;
  char open = '\0';
  for (size_t i = 0; i < command.size(); ++i) {
    if (command.substr(i).starts_with(mark)) {
      all += for_shell(value, open);
      i += mark.size() - 1;
      continue;
    }
    const char c = command[i];
    all += c;
    if (c == '\\' && open != '\'' && i + 1 < command.size()) {
      all += command[++i];
    } else if (open == '\0' && (c == '"' || c == '\'')) {
      open = c;
    } else if (c == open) {
      open = '\0';
    }
  }
  return all;
}

CommandQueue::CommandQueue(std::function<void(const std::string&, int)> ended) : ended_(std::move(ended)) {}

void CommandQueue::submit(std::string command, std::string name) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({std::move(command), std::move(name)});
  }
  poll();
}

bool CommandQueue::finish_within(std::chrono::milliseconds most) {
  const auto limit = std::chrono::steady_clock::now() + most;
  while (!poll()) {
    if (std::chrono::steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::vector<std::string> CommandQueue::waiting() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Command& command : commands_) names.push_back(command.name);
  return names;
}

bool CommandQueue::poll() {
  const std::lock_guard lock(mutex_);
  while (!commands_.empty()) {
    int code = kNoShell;
    if (process_ == 0) process_ = start(commands_.front().words);
    if (process_ != 0) {
      int status = 0;
      pid_t reaped = 0;
      do {
        reaped = ::waitpid(process_, &status, WNOHANG);
      } while (reaped < 0 && errno == EINTR);
      if (reaped == 0) return false;
      code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    ended_(commands_.front().words, code);
    commands_.pop_front();
    process_ = 0;
  }
  return true;
}

}  // namespace titan
