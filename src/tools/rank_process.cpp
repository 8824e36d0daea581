#include "rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "titan/base/error.h"
#include "titan/base/process.h"

namespace titan {
namespace {

// A line is passed on in parts beyond this: a rank that never ends one must not fill the launcher's memory.
constexpr size_t kLongestLine = size_t{1} << 16;

/// Null-terminated array of pointers to the strings, as execve expects.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view word(*entry);
    if (!variables.contains(std::string(word.substr(0, word.find('='))))) words.emplace_back(word);
  }
  for (const auto& [name, value] : variables) words.push_back(fmt::format("{}={}", name, value));
  return words;
}

/// Runs in the child and only calls async-signal-safe functions, because this process has other threads.
[[noreturn]] void become(const char* program, char** arguments, char** environment, int output, int errors,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent ended before prctl, so no signal would come
  // A Ctrl-C must reach only the launcher, which forwards it: a second one would mean "stop at once".
  ::setpgid(0, 0);
  // Until the program takes them (StopSignals) these two wait: one would kill a rank that is still being loaded.
  sigset_t wait;
  ::sigemptyset(&wait);
  ::sigaddset(&wait, SIGUSR1);
  ::sigaddset(&wait, SIGUSR2);
  ::sigprocmask(SIG_SETMASK, &wait, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGUSR2, SIG_DFL);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::execve(program, arguments, environment);
  ::_exit(127);
}

}  // namespace

int LinePipe::open() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  descriptor_ = ends[0];
  ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
  return ends[1];
}

void LinePipe::read(const std::function<void(std::string_view line)>& take) {
  std::array<char, 65536> buffer;
  while (descriptor_ >= 0) {
    const ssize_t got = ::read(descriptor_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      close();
      break;
    }
    pending_.append(buffer.data(), static_cast<size_t>(got));
  }
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(std::string_view(pending_).substr(begin, end - begin));
  }
  pending_.erase(0, begin);
  if (!pending_.empty() && (descriptor_ < 0 || pending_.size() > kLongestLine)) {
    take(pending_);
    pending_.clear();
  }
}

void LinePipe::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void RankProcess::start(const std::string& program, const std::vector<std::string>& arguments,
                        const std::map<std::string, std::string>& variables, bool shares_output) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> settings = environment_with(variables);
  const std::vector<char*> word_pointers = pointers(words);
  const std::vector<char*> setting_pointers = pointers(settings);
  const int output_end = shares_output ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0) : output.open();
  const int error_end = errors.open();
  const pid_t parent = ::getpid();
  process_ = output_end < 0 || error_end < 0 ? -1 : ::fork();
  if (process_ == 0) {
    become(program.c_str(), const_cast<char**>(word_pointers.data()), const_cast<char**>(setting_pointers.data()),
           output_end, error_end, parent);
  }
  const int reason = errno;
  if (output_end >= 0) ::close(output_end);
  if (error_end >= 0) ::close(error_end);
  if (process_ > 0) return;
  if (reason == EAGAIN) {
    throw Error(ExitCode::out_of_memory,
                fmt::format("rank {} cannot be started: the system starts no more processes ({}); raise the limit, or "
                            "start fewer ranks",
                            rank_, task_limit()));
  }
  throw Error(ExitCode::launcher,
              fmt::format("rank {} cannot be started: {}; see the limits on processes and open files "
                          "(ulimit -a)",
                          rank_, std::strerror(reason)));
}

RankProcess::~RankProcess() {
  if (!is_running()) return;  // else an error keeps the launcher from waiting for it
  send(SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void RankProcess::send(int signal) const {
  if (!is_running()) return;
  // The group exists only after the child has created it; before that, signal the child.
  if (::kill(-process_, signal) != 0) ::kill(process_, signal);
}

bool RankProcess::check() {
  if (!is_running()) return false;
  int status = 0;
  if (::waitpid(process_, &status, WNOHANG) != process_) return false;
  end_ =
      WIFSIGNALED(status) ? ProcessEnd{128 + WTERMSIG(status), WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
  return true;
}

}  // namespace titan
