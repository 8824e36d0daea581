#include "titan/base/command_queue.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace titan {
namespace {

constexpr int kNoShell = 127;

/// The shell's process, or nothing: no signal is blocked or ignored in it, whatever this program does with its own.
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

CommandQueue::CommandQueue(std::function<void(const std::string&, int)> ended) : ended_(std::move(ended)) {}

void CommandQueue::submit(std::string command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push(std::move(command));
  }
  poll();
}

void CommandQueue::advance(bool wait) {
  const std::lock_guard lock(mutex_);
  while (!commands_.empty()) {
    int code = kNoShell;
    if (process_ == 0) process_ = start(commands_.front());
    if (process_ != 0) {
      int status = 0;
      pid_t reaped = 0;
      do {
        reaped = ::waitpid(process_, &status, wait ? 0 : WNOHANG);
      } while (reaped < 0 && errno == EINTR);
      if (reaped == 0) return;  // it still runs
      code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    ended_(commands_.front(), code);
    commands_.pop();
    process_ = 0;
  }
}

}  // namespace titan
