#include "titan/tools/launch.h"
#include "titan/base/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <utility>

#include "rank_process.h"
#include "titan/base/console_writer.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/job/launch_environment.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::string_view kOwnName = "titan_train: ";
constexpr std::string_view kWarning = "warning: ";
constexpr int kPeerFailure = static_cast<int>(ExitCode::peer_failure);
constexpr int kHang = static_cast<int>(ExitCode::hang);
constexpr int kRequeue = static_cast<int>(ExitCode::requeue);
/// After the first failure, ranks have this long to terminate each other and report the cause: kFirstToEndLimit and
/// kOwnEndLimit of distributed/ending.h. Then they get SIGTERM, and after the time that closing files may take,
/// SIGKILL.
constexpr std::chrono::seconds kOwnEnd{5};
constexpr std::chrono::seconds kAskedEnd{3};
/// The same after a rank exited because of a hang: the others have already waited, so that kOwnEndLimit is enough, and
/// a hung rank ignores SIGTERM.
constexpr std::chrono::seconds kOwnEndOfHang{3};
constexpr std::chrono::seconds kAskedEndOfHang{1};

/// Signals as a file descriptor for poll(2); the destructor restores the signal mask.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    struct sigaction of_hangup {};
    ::sigaction(SIGHUP, nullptr, &of_hangup);
    // The kernel keeps a blocked signal even if it is ignored: under nohup, SIGHUP must not be among them.
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
      if (signal != SIGHUP || of_hangup.sa_handler != SIG_IGN) ::sigaddset(&wanted, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    descriptor_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalQueue() {
    ::close(descriptor_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_; }
  /// The next signal, or 0.
  int next() const {
    signalfd_siginfo info{};
    return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

class Launcher {
 public:
  explicit Launcher(const LaunchRequest& request) : request_(request) {}

  LaunchEnd run() {
    start();
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->is_running(); })) {
      wait();
      for (int signal; (signal = signals_.next()) != 0;) {
        if (signal != SIGCHLD) pass_on_signal(signal);
      }
      for (const auto& rank : ranks_) {
        if (rank->check()) note_end(*rank);
        pass_on(*rank);
      }
      end_the_rest();
    }
    pass_on_rest();
    return close();
  }

 private:
  void start();
  std::map<std::string, std::string> variables_of(int64_t rank) const;
  void wait() const;
  void pass_on_signal(int signal);
  void send_all(int signal) const {
    for (const auto& rank : ranks_) rank->send(signal);
  }
  void note_end(const RankProcess& rank);
  void end_the_rest();
  void pass_on(RankProcess& rank);
  void pass_on_errors(RankProcess& rank);
  bool is_shown(const RankProcess& rank) const {
    return request_.shown_ranks.empty() || request_.shown_ranks.contains(rank.rank());
  }
  void write_waiting();
  void pass_on_rest();
  void give_up_output();
  void keep(const RankProcess& rank, std::string_view line);
  std::string words_of(const RankProcess& rank) const;
  std::string story_of(const RankProcess& rank) const;
  LaunchEnd close() const;

  const LaunchRequest& request_;
  SignalQueue signals_;
  const std::string secret_ = random_secret();
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::map<int64_t, std::unique_ptr<AppendFile>> files_;  // standard output of ranks that are not shown
  std::string last_error_line_;                           // of any rank, before SIGTERM was sent
  const RankProcess* failed_ = nullptr;                   // the first; one with peer_failure only if there is no other
  std::set<std::string> said_;                            // lines on standard error, to print each once
  std::deque<std::pair<const RankProcess*, std::string>> waiting_;  // lines for standard output, which is not read now
  bool lost_output_ = false;                                        // standard output cannot be written
  bool lost_lines_ = false;                                         // of ranks that are not shown
  bool asked_ = false;                                              // the remaining ranks got SIGTERM
  bool was_asked_ = false;                                          // by the user's signal, to end
  double first_end_ = 0;                                            // wall time; 0: no rank has ended
  Clock::time_point ask_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
};

void Launcher::start() {
  for (int64_t rank = 0; rank < request_.ranks; ++rank) {
    ranks_.push_back(std::make_unique<RankProcess>(rank));
    ranks_.back()->start(request_.program.string(), request_.arguments, variables_of(rank),
                         /*shares_output=*/request_.output_is_result && rank == 0);
  }
}

std::map<std::string, std::string> Launcher::variables_of(int64_t rank) const {
  const std::string size = std::to_string(request_.ranks);
  std::map<std::string, std::string> variables{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"TITAN_SECRET", secret_},
      {"TORCHELASTIC_RUN_ID", fmt::format("titan-{}", ::getpid())},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(request_.attempt)},
      {"TITAN_LAUNCHER", "titan_train launch"},
      {"TITAN_RESTARTED", request_.attempt > 0 ? "1" : ""},
  };
  std::string shown;
  for (const int64_t one : request_.shown_ranks) shown += fmt::format("{}{}", shown.empty() ? "" : ",", one);
  variables["LOG_RANK"] = shown.empty() ? "all" : shown;
  return variables;
}

void Launcher::wait() const {
  std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0}};
  if (!waiting_.empty()) entries.push_back({STDOUT_FILENO, POLLOUT, 0});
  for (const auto& rank : ranks_) {
    if (waiting_.empty() || !is_shown(*rank)) entries.push_back({rank->output.descriptor(), POLLIN, 0});
    entries.push_back({rank->errors.descriptor(), POLLIN, 0});
  }
  const auto next = std::min(ask_at_, kill_at_);
  const bool limited = next != Clock::time_point::max();
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  ::poll(entries.data(), entries.size(), limited ? static_cast<int>(std::max<int64_t>(0, left)) : -1);
}

void Launcher::pass_on_signal(int signal) {
  was_asked_ |= signal != SIGUSR2;  // which asks for a checkpoint and no end
  send_all(signal);
}

void Launcher::note_end(const RankProcess& rank) {
  if (first_end_ == 0) first_end_ = wall_time();
  const int code = rank.end()->exit_code;
  if (code == 0) return;
  // Ranks that were terminated by the launcher are not the cause, whatever their code.
  const bool only_consequences = failed_ && failed_->end()->exit_code == kPeerFailure && !asked_;
  if (!failed_ || (only_consequences && code != kPeerFailure)) failed_ = &rank;
  if (ask_at_ == Clock::time_point::max()) {
    ask_at_ = Clock::now() + (code == kHang ? kOwnEndOfHang : kOwnEnd);
    kill_at_ = ask_at_ + (code == kHang ? kAskedEndOfHang : kAskedEnd);
  }
}

void Launcher::end_the_rest() {
  if (Clock::now() >= kill_at_) {
    send_all(SIGKILL);
    // Again each second: a rank in an uninterruptible call, such as a read from a network disk, ends later.
    kill_at_ = Clock::now() + std::chrono::seconds(1);
  } else if (Clock::now() >= ask_at_) {
    send_all(SIGTERM);
    asked_ = true;
    ask_at_ = kill_at_;
  }
}

/// Whether a line of standard error may be the cause of a failure: no warning, and of the log, which is there where
/// standard output is a result (LaunchRequest::output_is_result), only errors.
bool may_explain(std::string_view line) {
  const bool is_log_line = line.starts_with("[titan] ");
  return !line.empty() && !line.starts_with(kWarning) && !(is_log_line && line.find("ERROR - ") == line.npos);
}

std::string marked(const RankProcess& rank, std::string_view line) {
  return fmt::format("[rank{}] {}\n", rank.rank(), line);
}

// While standard output is not read, that of the ranks is not read either: their pipes fill, and their logs continue
// in their own files until there is room again. The launcher itself never waits, since it passes on signals, too.
void Launcher::pass_on(RankProcess& rank) {
  write_waiting();
  if (waiting_.empty() || !is_shown(rank)) {
    rank.output.read([&](std::string_view line) {
      if (!is_shown(rank) || lost_output_) return keep(rank, line);
      waiting_.emplace_back(&rank, marked(rank, line));
      write_waiting();
    });
  }
  // A rank whose pipe is closed notices it and writes its log to its own file.
  if (lost_output_ && is_shown(rank)) rank.output.close();
  pass_on_errors(rank);
}

void Launcher::write_waiting() {
  while (!waiting_.empty() && !lost_output_) {
    std::string& line = waiting_.front().second;
    line.erase(0, standard_output().write_some(line));
    if (standard_output().is_broken()) return give_up_output();
    if (!line.empty()) return;
    waiting_.pop_front();
  }
}

/// What the ranks have printed before they ended. What is not read within a second is in their files.
void Launcher::pass_on_rest() {
  for (const auto& rank : ranks_) pass_on(*rank);
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(1);
  while (!waiting_.empty() && Clock::now() < limit) {
    pollfd entry{STDOUT_FILENO, POLLOUT, 0};
    ::poll(&entry, 1, 100);
    for (const auto& rank : ranks_) pass_on(*rank);
  }
  if (!waiting_.empty()) give_up_output();
  for (const auto& rank : ranks_) rank->output.read([&](std::string_view line) { keep(*rank, line); });
}

void Launcher::pass_on_errors(RankProcess& rank) {
  rank.errors.read([&](std::string_view line) {
    if (may_explain(line)) {
      rank.last_error_line = line;
      if (!asked_) last_error_line_ = line;
    }
    if (request_.output_is_result && !said_.emplace(line).second) return;
    standard_error().write(marked(rank, line));
  });
}

void Launcher::give_up_output() {
  lost_output_ = true;
  std::cerr << fmt::format(
      "titan_train launch: standard output could not be written ({}); the ranks' log continues in {}\n",
      standard_output().is_broken() ? standard_output().problem() : "its reader stopped reading",
      request_.output_folder.string());
  for (const auto& [rank, line] : std::exchange(waiting_, {}))
    keep(*rank, std::string_view(line).substr(0, line.size() - 1));
}

void Launcher::keep(const RankProcess& rank, std::string_view line) {
  std::unique_ptr<AppendFile>& file = files_[rank.rank()];
  if (!file) {
    std::error_code ignored;  // if it fails, so does opening the file, which says why
    std::filesystem::create_directories(request_.output_folder, ignored);
    file = std::make_unique<AppendFile>(request_.output_folder / fmt::format("rank-{:04}.out", rank.rank()));
  }
  // A full disk is no reason to stop the run: errors of a rank go to its standard error, not here.
  if (file->append_line(line) || lost_lines_) return;
  lost_lines_ = true;
  std::cerr << fmt::format(
                   "titan_train launch: what rank {} and other ranks that are not shown print is lost: {}: {}\n",
                   rank.rank(), request_.output_folder.string(), file->last_error())
            << std::flush;
}

/// The rank's message, or, since a failed rank may leave its message to rank 0, which prints it once, the last one of
/// any rank.
std::string Launcher::words_of(const RankProcess& rank) const {
  std::string_view words = rank.last_error_line.empty() ? last_error_line_ : rank.last_error_line;
  if (words.starts_with(kOwnName)) words.remove_prefix(kOwnName.size());
  // Rank 0 says of another which it is and how it ended; the sentence that these words end says so itself.
  const std::string how = fmt::format(") failed with exit code {}: ", rank.end()->exit_code);
  const size_t at = words.starts_with(fmt::format("rank {} (", rank.rank())) ? words.find(how) : words.npos;
  if (at != words.npos) words.remove_prefix(at + how.size());
  return std::string(words);
}

/// "ended with exit code 71: …", "was killed by signal 9 (Killed)", with the known details.
std::string Launcher::story_of(const RankProcess& rank) const {
  const ProcessEnd end = *rank.end();
  if (end.signal == SIGKILL) {
    return fmt::format("was killed by signal {} ({}); unless someone sent it, the system was out of memory (see dmesg)",
                       end.signal, ::strsignal(end.signal));
  }
  const std::string how = end.signal != 0
                              ? fmt::format("was killed by signal {} ({})", end.signal, ::strsignal(end.signal))
                              : fmt::format("ended with exit code {}", end.exit_code);
  const std::string words = words_of(rank);
  return fmt::format("{}{}{}", how, words.empty() ? "" : ": ", words);
}

LaunchEnd Launcher::close() const {
  LaunchEnd end;
  end.was_asked = was_asked_;
  end.failed = first_end_;
  end.ended = wall_time();
  if (!failed_) return end;
  end.exit_code = failed_->end()->exit_code;
  end.signal = failed_->end()->signal;
  end.rank = failed_->rank();
  end.sentence = end.exit_code == kRequeue ? "saved; " + request_.how_to_resume
                                           : fmt::format("rank {} {}", failed_->rank(), story_of(*failed_));
  // This message names the unit, all ranks and documents. It has several lines and was printed just before.
  const bool is_long = end.exit_code == static_cast<int>(ExitCode::non_finite);
  if (is_long && !words_of(*failed_).empty()) end.printed = ": " + words_of(*failed_);
  return end;
}

}  // namespace

LaunchEnd launch_attempt(const LaunchRequest& request) {
  ::signal(SIGPIPE, SIG_IGN);  // a pager that is closed must not end the run
  ::signal(SIGUSR2, SIG_IGN);  // between two attempts there is nothing to save
  return Launcher(request).run();
}

std::string without_printed(std::string words, const LaunchEnd& end) {
  const size_t begin = end.printed.empty() ? words.npos : words.find(end.printed);
  if (begin != words.npos) words.replace(begin, end.printed.size(), " (its message is above)");
  return words;
}

int launch_ranks(const LaunchRequest& request) {
  const LaunchEnd end = launch_attempt(request);
  const std::string words = without_printed(end.sentence, end);
  if (!words.empty()) std::cerr << fmt::format("titan_train launch: {}\n", words) << std::flush;
  return end.exit_code;
}

}  // namespace titan
