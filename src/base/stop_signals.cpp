#include "titan/base/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "titan/base/console_writer.h"
#include "titan/base/error.h"
#include "titan/base/log.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

// Signals belong to the process, so their state is global.
std::atomic<int> received_signal = 0;
std::atomic<bool> save_requested = false;
std::atomic<bool> saves_now = false;
/// When the first signal with a time limit arrived; the clock's zero: none yet.
std::atomic<Clock::time_point> limited_since = Clock::time_point();
/// The thread that receives signals. A handler on another thread forwards to it.
std::atomic<pthread_t> taker = 0;

// Ctrl-C does not wait for a step, a read or a compilation, which may take minutes.
constexpr std::chrono::seconds kInterruptLimit{4};
// Slurm and Kubernetes kill 30 s after SIGTERM: leaves most of that to a step, and time to write the closing line.
constexpr std::chrono::seconds kTerminateLimit{25};

// Part of the limit: the closing lines, which say what was saved, need time of their own.
constexpr std::chrono::seconds kClosingTime{3};

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/// nohup ignores SIGHUP, so that a run outlives its terminal. A shell ignores SIGINT for background commands, which
/// only keeps Ctrl-C from them: a SIGINT that is sent to one is meant.
bool stays_ignored(int signal, const struct sigaction& before) {
  return signal == SIGHUP && before.sa_handler == SIG_IGN;
}

/// Replaces the status line, if the terminal shows one.
void print_line(std::string_view line) { standard_error().write(line_start(STDERR_FILENO) + std::string(line)); }

void pass_on(int signal) {
  const int kept = errno;
  ::pthread_kill(taker, signal);
  errno = kept;
}

/// The next pending signal, or 0.
int next_signal(int signals) {
  signalfd_siginfo info{};
  return ::read(signals, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

int milliseconds_until(const std::optional<Clock::time_point>& limit) {
  if (!limit) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*limit - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

}  // namespace

StopSignals::StopSignals(std::function<void()> before_end) : before_end_(std::move(before_end)) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : kSignals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (stays_ignored(signal, before)) continue;
    before_.emplace_back(signal, before);
    ::sigaddset(&wanted, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &wanted, &mask_before_);
  signals_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signals_ < 0 || end_ < 0) throw Error(ExitCode::bug, "no file descriptors are left (see ulimit -n)");
  thread_ = std::thread([this] { watch(); });
  taker = thread_.native_handle();
  struct sigaction action {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  for (const auto& [signal, before] : before_) ::sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
  ::eventfd_write(end_, 1);
  thread_.join();
  while (next_signal(signals_) != 0) {  // unblocking them below would end the process: they were meant for this object
  }
  for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
  ::close(signals_);
  ::close(end_);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  received_signal = 0;
  save_requested = saves_now = false;
  limited_since = Clock::time_point();
}

std::optional<std::chrono::seconds> StopSignals::limit(int signal) {
  if (signal == SIGINT) return kInterruptLimit;
  if (signal == SIGTERM || signal == SIGHUP) return kTerminateLimit;
  return std::nullopt;
}

int StopSignals::received() { return received_signal; }

bool StopSignals::was_sent() {
  sigset_t pending;
  ::sigpending(&pending);
  const bool is_pending = std::any_of(kSignals.begin(), kSignals.end(), [&](int signal) {
    return signal != SIGUSR2 && ::sigismember(&pending, signal) == 1;
  });
  // The receiving thread may not have read the signal yet, or not stored it: callers ask for its number next.
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(is_pending ? 5000 : 200);
  while (received_signal == 0 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return is_pending || received_signal != 0;
}

bool StopSignals::take_save_request() { return save_requested.exchange(false); }

void StopSignals::allow_for_saving() { saves_now = true; }

std::chrono::milliseconds StopSignals::time_for(std::chrono::milliseconds requested) {
  const Clock::time_point since = limited_since;
  if (since == Clock::time_point()) return requested;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(since + kTerminateLimit - kClosingTime - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), requested);
}

void StopSignals::end_now(std::string_view line) const {
  if (before_end_) before_end_();
  print_line(line);
  ::_exit(static_cast<int>(ExitCode::interrupted));
}

void StopSignals::watch() const {
  std::optional<Clock::time_point> limit;
  bool is_short = false;
  for (;;) {
    std::array<pollfd, 2> entries{{{signals_, POLLIN, 0}, {end_, POLLIN, 0}}};
    const int ready = ::poll(entries.data(), entries.size(), milliseconds_until(limit));
    if (ready == 0) {
      if (!is_short || !saves_now) end_now("titan_train: stopped by a signal; the work under way was dropped\n");
      limit = *limit + (kTerminateLimit - kInterruptLimit);
      is_short = false;
    }
    if (ready > 0 && entries[1].revents != 0) return;
    while (const int signal = next_signal(signals_)) {
      if (signal == SIGUSR2) {
        save_requested = true;
        continue;
      }
      if (signal == SIGINT && received_signal != 0) end_now("");
      if (received_signal == 0) {
        received_signal = signal;
        // Acknowledges Ctrl-C on a terminal; a log does not need the line.
        if (signal == SIGINT && ::isatty(STDERR_FILENO) != 0) {
          print_line(
              "Ctrl-C: this step is finished and what the config asks for is saved; Ctrl-C again ends at once\n");
        }
      }
      // The first limit is kept: whoever sent the first signal counts from that one.
      if (limit || !StopSignals::limit(signal)) continue;
      is_short = signal == SIGINT;
      const Clock::time_point now = Clock::now();
      limited_since = now;
      limit = now + *StopSignals::limit(signal);
    }
  }
}

}  // namespace titan
