#include "gather.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <set>

#include "ending.h"
#include "poller.h"
#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/stop_signals.h"
#include "titan/job/launch_environment.h"

namespace titan {

ExitCode code_of_stop() { return StopSignals::received() == SIGUSR1 ? ExitCode::requeue : ExitCode::interrupted; }

namespace {

using Clock = std::chrono::steady_clock;

/// A caller that has not authenticated within this time is dropped: a port scanner must not hold a connection.
constexpr std::chrono::seconds kSilenceLimit{1};
/// The time limit that replaces kSilenceLimit while kMostCallers are connected. Ranks authenticate at once, and another
/// rank may be waiting for a free connection.
constexpr std::chrono::milliseconds kFullLimit{100};
/// The time limit for the facts of a caller that has authenticated. They contain the whole config.
constexpr std::chrono::seconds kReportLimit{5};
/// The largest number of callers that are connected at a time, since each takes a file descriptor. Further callers wait
/// in the kernel's queue.
constexpr size_t kMostCallers = 512;
/// How long a run that cannot start waits for ranks that have not joined yet, to send them the reason.
constexpr std::chrono::seconds kRefusalLimit{5};
/// Pause between two tries to connect, or to accept after the process ran out of file descriptors.
constexpr std::chrono::milliseconds kRetryTime{100};
/// A listener that does not answer like rank 0 within this time is not rank 0.
constexpr std::chrono::milliseconds kGreetingLimit{1000};
/// Added to the time that a rank waits for rank 0's decision: rank 0 may have been started later, and waits for its
/// full timeout from then on.
constexpr std::chrono::seconds kVerdictMargin{5};

// One thread serves all callers, so a caller that does not read is dropped instead of delaying the others.
constexpr std::chrono::milliseconds kWithoutWaiting{0};

Refusal stopped() {
  return {static_cast<int>(code_of_stop()), "stopped by a signal while the ranks were gathering", /*is_over=*/true};
}

/// A hint for missing ranks: they may be connecting to rank 0 on another host.
std::string words_for_elsewhere(const std::string& host) {
  if (host.empty() || names_this_machine(host)) return {};
  return fmt::format("; and check MASTER_ADDR or comm.master: {} is not an address of this host, where rank 0 is",
                     host);
}

std::string rejected_caller_words(int64_t rejected, int64_t silent) {
  std::string words;
  if (rejected > 0) {
    words = fmt::format("; {} callers did not know this run's secret (give all ranks the same TITAN_SECRET)", rejected);
  }
  if (silent > 0) words += fmt::format("; {} callers sent nothing (ss -tnp shows whose they are)", silent);
  return words;
}

/// Whether accept(2) failed for lack of descriptors or memory, not because of the caller.
bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

/// Rank 0's side.
class Gathering {
 public:
  Gathering(Descriptor listener, RankFacts zero, const Meeting& meeting)
      : listener_(std::move(listener)), meeting_(meeting), check_(std::move(zero)) {}
  /// If no run was started, the other ranks wait until this process has exited.
  ~Gathering() {
    for (auto& [rank, channel] : members_) channel.keep_until_exit();
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  GatheredRanks gather(Deadline deadline);

 private:
  /// A connection that has not identified its rank yet.
  struct Caller {
    Channel channel;
    Handshake handshake;
    Deadline until;  // when it is dropped
    bool is_silent = true;
    bool is_proven = false;
  };

  // A pass is made for nearly each message of each rank: it costs as much as the callers, of which there are few at a
  // time, and never as much as all members.

  /// Waits for a connection or a message. Callers that identify themselves become members; returns their facts.
  std::vector<RankFacts> hear_callers(Deadline deadline);
  void accept_callers();
  /// Notes the members that have closed their connections.
  void hear_members();
  void add_member(int64_t rank, Channel channel);
  /// The facts of a caller that proves to be a rank of this run. Sets `until` to now if it can be dropped.
  std::optional<RankFacts> hear_caller(Caller& caller);
  void check_members_stay();
  /// Drops an earlier connection of this rank, if ranks may be started again.
  void replace_member(int64_t rank);
  /// Reports the refusal to the ranks that joined, and throws.
  [[noreturn]] void refuse_members(const Refusal& refusal);
  /// The same, after a short time in which the other ranks can still join.
  [[noreturn]] void refuse_all(const Refusal& refusal);

  Descriptor listener_;
  const Meeting& meeting_;
  RankCheck check_;
  std::vector<Caller> callers_;
  std::multimap<int64_t, Channel> members_;  // by rank; of one rank, in the order in which they came
  Poller member_poller_;                     // by rank
  std::set<int64_t> came_;                   // ranks that have been members
  std::vector<int64_t> closed_;              // ranks of members that have closed their connections
  int64_t rejected_callers_ = 0;             // callers without the secret
  int64_t silent_ = 0;                       // callers that sent nothing
  Deadline accept_again_{};                  // after running out of file descriptors
};

GatheredRanks Gathering::gather(Deadline deadline) {
  const RankFacts& zero = *check_.facts(0);
  if (!zero.problem.empty()) refuse_all({zero.problem_code, zero.problem});
  const Deadline begin = Clock::now();
  while (!check_.is_complete()) {
    if (StopSignals::received() != 0) refuse_members(stopped());
    if (Clock::now() >= deadline) {
      const auto waited = std::chrono::round<std::chrono::seconds>(deadline - begin).count();
      refuse_members(
          {static_cast<int>(ExitCode::launcher),
           fmt::format(
               "{} of {} did not connect within {} s (comm.init_timeout_seconds); see whether they were started "
               "and what they printed{}{}",
               check_.missing(), check_.size(), waited, rejected_caller_words(rejected_callers_, silent_),
               words_for_elsewhere(meeting_.host)),
           /*is_over=*/true});
    }
    for (RankFacts& facts : hear_callers(deadline)) {
      if (meeting_.restarts) replace_member(facts.rank);
      if (const std::optional<Refusal> refusal = check_.add(std::move(facts))) refuse_all(*refusal);
    }
    check_members_stay();
  }
  if (const std::optional<Refusal> refusal = check_.settle()) refuse_all(*refusal);
  GatheredRanks gathered{std::move(check_), {}};
  for (auto& [rank, channel] : std::exchange(members_, {})) gathered.channels.emplace_back(rank, std::move(channel));
  return gathered;
}

std::vector<RankFacts> Gathering::hear_callers(Deadline deadline) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}, {member_poller_.descriptor(), POLLIN, 0}};
  const size_t first_caller = entries.size();
  const bool is_full = callers_.size() >= kMostCallers || Clock::now() < accept_again_;
  const auto end_of = [is_full](const Caller& caller) {
    return is_full && !caller.is_proven ? caller.until - kSilenceLimit + kFullLimit : caller.until;
  };
  if (is_full) entries[0].fd = -1;
  for (const Caller& caller : callers_) {
    entries.push_back({caller.channel.descriptor(), POLLIN, 0});
    deadline = std::min(deadline, end_of(caller));
  }
  ::poll(entries.data(), entries.size(), poll_time(deadline));
  if (!is_full) accept_callers();
  std::vector<RankFacts> came;
  size_t entry = first_caller;
  std::erase_if(callers_, [&](Caller& caller) {
    const bool is_ready = entry < entries.size() && entries[entry].revents != 0;  // one accepted now has no entry
    ++entry;
    std::optional<RankFacts> facts = is_ready ? hear_caller(caller) : std::nullopt;
    if (facts) came.push_back(*std::move(facts));
    if (Clock::now() < end_of(caller)) return false;
    silent_ += caller.is_silent ? 1 : 0;
    return true;
  });
  if (entries[1].revents != 0) hear_members();
  return came;
}

void Gathering::hear_members() {
  for (const uint64_t key : member_poller_.wait(0)) {
    const auto rank = static_cast<int64_t>(key);
    const auto [begin, end] = members_.equal_range(rank);
    for (auto member = begin; member != end; ++member) {
      Channel& channel = member->second;
      if (!channel.is_open() || channel.read_arrived()) continue;
      member_poller_.remove(channel.descriptor());
      closed_.push_back(rank);
    }
  }
}

void Gathering::add_member(int64_t rank, Channel channel) {
  // A rank that ends after its report may have closed the connection before the report was read.
  if (channel.is_open()) {
    member_poller_.add(channel.descriptor(), static_cast<uint64_t>(rank));
  } else {
    closed_.push_back(rank);
  }
  members_.emplace(rank, std::move(channel));
  came_.insert(rank);
}

void Gathering::accept_callers() {
  while (callers_.size() < kMostCallers) {
    std::optional<Channel> channel = Channel::accept(listener_);
    if (!channel) {
      if (!is_shortage(errno)) return;
      // Dropped callers free their descriptors within seconds; without callers, no descriptor will be freed.
      if (callers_.empty()) {
        refuse_members({static_cast<int>(ExitCode::launcher),
                        fmt::format("rank 0 cannot take the calls of {} ranks: {}; raise the limit on open files "
                                    "(ulimit -n)",
                                    check_.size(), std::strerror(errno))});
      }
      accept_again_ = Clock::now() + kRetryTime;
      return;
    }
    Caller caller{
        std::move(*channel), {meeting_.secret, port_of(listener_), random_secret(), {}}, Clock::now() + kSilenceLimit};
    if (caller.channel.send_line(greeting_line(caller.handshake.zero_nonce), kWithoutWaiting)) {
      callers_.push_back(std::move(caller));
    }
  }
}

std::optional<RankFacts> Gathering::hear_caller(Caller& caller) {
  caller.channel.read_arrived();
  while (const std::optional<std::string> line = caller.channel.take_line()) {
    caller.is_silent = false;
    if (caller.is_proven) {
      caller.until = Clock::now();
      std::optional<RankFacts> facts = RankFacts::from_json(*line);
      add_member(caller.handshake.rank, std::move(caller.channel));
      if (facts && facts->rank == caller.handshake.rank) return facts;
      refuse_members({static_cast<int>(ExitCode::launcher),
                      fmt::format("rank {} sent a report that cannot be read; start the same titan_train everywhere",
                                  caller.handshake.rank)});
    }
    const RankMessage message = parse_message(*line);
    if (message.hello) {
      caller.handshake.rank = message.hello->rank;
      caller.handshake.caller_nonce = message.hello->nonce;
      caller.is_proven = is_same_proof(message.hello->proof, caller.handshake.caller_proof());
      rejected_callers_ += caller.is_proven ? 0 : 1;
    }
    if (!caller.is_proven) {
      caller.until = Clock::now();
      return std::nullopt;
    }
    caller.channel.send_line(proof_line(caller.handshake.zero_proof()), kWithoutWaiting);
    caller.channel.set_longest_line(kJoiningLine);
    caller.until = Clock::now() + kReportLimit;
  }
  if (!caller.channel.is_open()) caller.until = Clock::now();
  return std::nullopt;
}

void Gathering::replace_member(int64_t rank) {
  if (members_.count(rank) < 2) return;
  const auto earlier = members_.lower_bound(rank);
  earlier->second.send_line(refused_line({kPeerFailure, "a new process has taken this rank's place", true}));
  members_.erase(earlier);
  check_.remove(rank);
}

void Gathering::check_members_stay() {
  for (const int64_t rank : std::exchange(closed_, {})) {
    const auto [begin, end] = members_.equal_range(rank);
    const auto closed = std::find_if(begin, end, [](const auto& member) { return !member.second.is_open(); });
    if (closed == end) continue;  // another process has taken its place
    if (meeting_.restarts) {
      members_.erase(closed);
      came_.erase(rank);
      check_.remove(rank);
      continue;
    }
    // A launcher that stops all ranks may signal rank 0 first: then the rank that left is not the cause.
    if (StopSignals::was_sent()) refuse_all(stopped());
    refuse_all({kPeerFailure, fmt::format("{} ended while the ranks were gathering; see what it printed",
                                          check_.facts(rank)->name())});
  }
}

void Gathering::refuse_members(const Refusal& refusal) {
  for (auto& [rank, channel] : members_) channel.send_line(refused_line(refusal));
  throw Error(static_cast<ExitCode>(refusal.code), refusal.text);
}

// Waits for all ranks before it refuses them. A rank that connects after this process has exited would retry until its
// own timeout, and a launcher that sees one rank exit may kill this one before it has reported the reason.
void Gathering::refuse_all(const Refusal& refusal) {
  const auto all_have_come = [this] { return std::ssize(came_) + 1 >= check_.size(); };
  const Deadline limit = Clock::now() + kRefusalLimit;
  while (!all_have_come() && Clock::now() < limit && StopSignals::received() == 0) hear_callers(limit);
  refuse_members(refusal);
}

// ---- every other rank's side

void throw_if_stopped() {
  if (StopSignals::received() != 0) throw Error(code_of_stop(), stopped().text);
}

/// Whether the listener behind `channel` proves that it is rank 0 of this run.
bool is_rank_zero(Channel& channel, uint16_t port, const std::string& secret, int64_t rank) {
  const Deadline limit = Clock::now() + kGreetingLimit;
  const std::optional<std::string> greeting = channel.wait_line(limit);
  const std::optional<std::string> nonce = greeting ? parse_message(*greeting).greeting : std::nullopt;
  if (!nonce) return false;
  const Handshake handshake{secret, port, *nonce, random_secret(), rank};
  channel.send_line(hello_line({rank, handshake.caller_nonce, handshake.caller_proof()}));
  const std::optional<std::string> answer = channel.wait_line(limit);
  const std::optional<std::string> proof = answer ? parse_message(*answer).proof : std::nullopt;
  return proof && is_same_proof(*proof, handshake.zero_proof());
}

/// Sets `name` to rank 0's name, for messages, as far as it is known. `begin`: of the search, for messages.
Channel find_rank_zero(const std::string& host, const std::vector<uint16_t>& ports, const std::string& secret,
                       int64_t rank, Deadline begin, Deadline deadline, std::string& name) {
  std::string reason = "no time was left";
  std::string doubt;  // about the listener that answered; preferred to a later `reason`: rank 0 may have exited since
  while (Clock::now() < deadline) {
    for (const uint16_t port : ports) {
      throw_if_stopped();
      std::optional<Channel> channel = Channel::connect(host, port, kGreetingLimit, reason);
      if (!channel) continue;
      if (is_rank_zero(*channel, port, secret, rank)) {
        name = fmt::format("rank 0 ({}:{})", host, port);
        return std::move(*channel);
      }
      doubt = fmt::format(
          "port {} belongs to something else, or to a run with another secret (give all ranks the same TITAN_SECRET), "
          "or has too many callers",
          port);
    }
    ::poll(nullptr, 0, static_cast<int>(kRetryTime.count()));
  }
  const auto waited = std::chrono::round<std::chrono::seconds>(deadline - begin).count();
  const std::string where =
      ports.size() == 1 ? fmt::format("port {}", ports[0]) : fmt::format("ports {} to {}", ports.front(), ports.back());
  throw Error(
      ExitCode::launcher,
      fmt::format("rank 0 was not found on {}, {}, within {} s (comm.init_timeout_seconds): {}; see whether it was "
                  "started and what it printed",
                  host, where, waited, doubt.empty() ? reason : doubt));
}

}  // namespace

GatheredRanks gather_ranks(Descriptor listener, RankFacts zero, Deadline deadline, const Meeting& meeting) {
  return Gathering(std::move(listener), std::move(zero), meeting).gather(deadline);
}

namespace {

/// Nothing if rank 0 has ended before it had gathered all ranks, and another may follow.
std::optional<JoinedRun> try_to_join(const std::vector<uint16_t>& ports, const RankFacts& facts, Deadline begin,
                                     Deadline deadline, const Meeting& meeting) {
  const bool may_follow = meeting.restarts && facts.problem.empty();
  std::string rank_zero;
  Channel channel = find_rank_zero(meeting.host, ports, meeting.secret, facts.rank, begin, deadline, rank_zero);
  channel.set_longest_line(kMembersLine);
  channel.send_line(facts.to_json());
  const Deadline latest = deadline + (deadline - Clock::now()) + kVerdictMargin;
  while (Clock::now() < latest) {
    throw_if_stopped();
    const std::optional<std::string> line = channel.wait_line(std::min(latest, Clock::now() + std::chrono::seconds(1)));
    if (!line && channel.is_open()) continue;
    const RankMessage message = line ? parse_message(*line) : RankMessage{};
    if (message.welcome) return JoinedRun{std::move(channel), *message.welcome};
    if (message.refused && message.refused->is_over && may_follow) return std::nullopt;
    if (message.refused) {
      // Rank 0 exits first: its message has the reason, and a launcher reports the first exit code.
      channel.wait_line(Clock::now() + kFirstToEndLimit);
      const int code = facts.problem.empty() ? message.refused->code : facts.problem_code;
      throw RefusedByRankZero(static_cast<ExitCode>(code), message.refused->text);
    }
    break;
  }
  if (!channel.is_open() && may_follow) return std::nullopt;
  const char* what = channel.is_open() ? " sent a message that cannot be read, or none" : " ended";
  throw Error(ExitCode::peer_failure,
              fmt::format("{}{} before all ranks were there; see what it printed", rank_zero, what));
}

}  // namespace

JoinedRun join_run(const std::vector<uint16_t>& ports, const RankFacts& facts, Deadline deadline,
                   const Meeting& meeting) {
  const Deadline begin = Clock::now();
  for (;;) {
    if (std::optional<JoinedRun> joined = try_to_join(ports, facts, begin, deadline, meeting))
      return *std::move(joined);
    ::poll(nullptr, 0, static_cast<int>(kRetryTime.count()));
  }
}

}  // namespace titan
