#include "titan/base/process.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

// A signal handler has no argument through which state could be passed to it: the one place where a static is needed.
volatile std::sig_atomic_t received_signal = 0;

// A step, a read or a compilation may take minutes; whoever pressed Ctrl-C is not kept waiting for it.
constexpr unsigned kInterruptSeconds = 4;
// Slurm and Kubernetes kill 30 s after SIGTERM: a step gets nearly all of that, and the closing line is still written.
constexpr unsigned kTerminateSeconds = 25;

void handle(int signal) {
  if (received_signal != 0) {
    if (signal == SIGINT) ::_exit(static_cast<int>(ExitCode::interrupted));
    return;  // the limit of the first signal stands
  }
  received_signal = signal;
  ::alarm(signal == SIGINT ? kInterruptSeconds : kTerminateSeconds);
}

void give_up(int) {
  constexpr std::string_view line =
      "titan_train: stopped by a signal; the work under way was dropped, nothing was saved\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(static_cast<int>(ExitCode::interrupted));
}

int64_t read_limit(const char* path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : std::numeric_limits<int64_t>::max();
}

}  // namespace

void restart_with(const std::string& name, const std::string& value) {
  std::error_code unreadable;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (unreadable || words.empty()) return;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  ::execv(program.c_str(), arguments.data());
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t total_memory_bytes() {
  struct sysinfo info {};
  ::sysinfo(&info);
  const int64_t machine = static_cast<int64_t>(info.totalram) * info.mem_unit;
  return std::min(machine, read_limit("/sys/fs/cgroup/memory.max"));
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return trim(line.substr(line.find(':') + 1));
  }
  return "CPU";
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

StopSignals::StopSignals() : stack_(static_cast<size_t>(std::max(::sysconf(_SC_SIGSTKSZ), 1L << 16))) {
  const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = handle;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = give_up;
  ::sigaction(SIGALRM, &action, nullptr);
}

StopSignals::~StopSignals() {
  ::alarm(0);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGALRM, SIG_DFL);
  const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
  ::sigaltstack(&none, nullptr);
  received_signal = 0;
}

int StopSignals::received() { return received_signal; }

}  // namespace titan
