#include "coordinator.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "titan/base/error.h"
#include "titan/base/stop_signals.h"
#include "titan/distributed/launch_environment.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// A caller that says nothing, or not enough, for this long is dropped.
constexpr std::chrono::seconds kSilenceLimit{1};
/// The same while no place is free for another, who may be a rank: those speak at once.
constexpr std::chrono::milliseconds kFullLimit{100};
/// The same for one that knows the secret.
constexpr std::chrono::seconds kReportLimit{5};
/// Callers that are heard at a time; others wait in the kernel's queue.
constexpr size_t kMostCallers = 512;
/// To those that need not be waited for.
constexpr std::chrono::milliseconds kAtOnce{0};

Refusal stopped() {
  return {static_cast<int>(ExitCode::interrupted), "stopped by a signal while the ranks were gathering"};
}

/// The end of a sentence about ranks that do not come.
std::string words_for_elsewhere(const std::string& host) {
  if (host.empty() || names_this_machine(host)) return {};
  return fmt::format("; and see to MASTER_ADDR or comm.master: {} is no address of this host, where rank 0 is", host);
}

std::string words_for_strangers(int64_t strangers, int64_t silent) {
  std::string words;
  if (strangers > 0) {
    words =
        fmt::format("; {} callers did not know this run's secret (give all ranks the same TITAN_SECRET)", strangers);
  }
  if (silent > 0) words += fmt::format("; {} callers said nothing (ss -tnp shows whose they are)", silent);
  return words;
}

/// Of accept(2): nothing is wrong with the caller.
bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

Coordinator::Coordinator(Descriptor listener, std::string secret, RankFacts zero, PeerFailed tell,
                         std::shared_ptr<WaitForGraph> waits, std::shared_ptr<FinalMessage> final_message)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      rank_check_(std::move(zero)),
      tell_(std::move(tell)),
      waits_(std::move(waits)),
      final_message_(std::move(final_message)) {}

Coordinator::~Coordinator() {
  table_->on_change({});
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.ring();
  if (thread_.joinable()) thread_.join();
  // The others wait for this process to be gone before they end.
  if (welcomed_ && !own_failure_) return;
  for (Member& member : members_) member.channel.keep_until_exit();
}

// ---- gathering, on the caller's thread

const RankCheck& Coordinator::gather(Deadline deadline, const std::string& host) {
  const RankFacts& zero = *rank_check_.facts(0);
  if (!zero.problem.empty()) refuse_all({zero.problem_code, zero.problem});
  const Deadline begin = Clock::now();
  while (!rank_check_.is_complete()) {
    if (StopSignals::received() != 0) refuse_members(stopped());
    if (Clock::now() >= deadline) {
      const auto waited = std::chrono::round<std::chrono::seconds>(deadline - begin).count();
      refuse_members(
          {static_cast<int>(ExitCode::launcher),
           fmt::format("{} of {} did not come within {} s (comm.init_timeout_seconds); see whether they were started "
                       "and what they printed{}{}",
                       rank_check_.missing(), rank_check_.size(), waited, words_for_strangers(strangers_, silent_),
                       words_for_elsewhere(host))});
    }
    for (RankFacts& facts : hear_callers(deadline)) {
      if (const std::optional<Refusal> refusal = rank_check_.add(std::move(facts))) refuse_all(*refusal);
    }
    check_members_stay();
  }
  if (const std::optional<Refusal> refusal = rank_check_.settle()) refuse_all(*refusal);
  listener_.close();
  return rank_check_;
}

std::vector<RankFacts> Coordinator::hear_callers(Deadline deadline) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  const bool is_full = callers_.size() >= kMostCallers || Clock::now() < accept_again_;
  const auto end_of = [is_full](const Caller& caller) {
    return is_full && !caller.is_proven ? caller.until - kSilenceLimit + kFullLimit : caller.until;
  };
  if (is_full) entries[0].fd = -1;
  for (const Caller& caller : callers_) {
    entries.push_back({caller.channel.descriptor(), POLLIN, 0});
    deadline = std::min(deadline, end_of(caller));
  }
  for (const Member& member : members_) {
    entries.push_back({member.channel.is_open() ? member.channel.descriptor() : -1, POLLIN, 0});
  }
  ::poll(entries.data(), entries.size(), poll_time(deadline));
  if (!is_full) accept_callers();
  std::vector<RankFacts> came;
  std::erase_if(callers_, [&](Caller& caller) {
    if (std::optional<RankFacts> facts = hear_caller(caller)) came.push_back(*std::move(facts));
    if (Clock::now() < end_of(caller)) return false;
    silent_ += caller.is_silent ? 1 : 0;
    return true;
  });
  for (Member& member : members_) member.channel.read_arrived();
  return came;
}

void Coordinator::accept_callers() {
  while (callers_.size() < kMostCallers) {
    std::optional<Channel> channel = Channel::accept(listener_);
    if (!channel) {
      if (!is_shortage(errno)) return;
      // Silent callers give theirs back within a second; if there are none, waiting is useless.
      if (callers_.empty()) {
        refuse_members({static_cast<int>(ExitCode::launcher),
                        fmt::format("rank 0 cannot take the calls of {} ranks: {}; raise the limit on open files "
                                    "(ulimit -n)",
                                    rank_check_.size(), std::strerror(errno))});
      }
      accept_again_ = Clock::now() + std::chrono::milliseconds(kRetryMilliseconds);
      return;
    }
    Caller caller{
        std::move(*channel), {secret_, port_of(listener_), random_secret(), {}}, Clock::now() + kSilenceLimit};
    if (caller.channel.send_line(greeting_line(caller.handshake.zero_nonce), kAtOnce)) {
      callers_.push_back(std::move(caller));
    }
  }
}

std::optional<RankFacts> Coordinator::hear_caller(Caller& caller) {
  caller.channel.read_arrived();
  while (const std::optional<std::string> line = caller.channel.take_line()) {
    caller.is_silent = false;
    if (caller.is_proven) {
      caller.until = Clock::now();
      std::optional<RankFacts> facts = RankFacts::from_json(*line);
      members_.push_back({caller.handshake.rank, std::move(caller.channel)});
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
      strangers_ += caller.is_proven ? 0 : 1;
    }
    if (!caller.is_proven) {
      caller.until = Clock::now();
      return std::nullopt;
    }
    caller.channel.send_line(proof_line(caller.handshake.zero_proof()), kAtOnce);
    caller.channel.set_longest_line(kJoiningLine);
    caller.until = Clock::now() + kReportLimit;
  }
  if (!caller.channel.is_open()) caller.until = Clock::now();
  return std::nullopt;
}

void Coordinator::check_members_stay() {
  for (const Member& member : members_) {
    if (member.channel.is_open()) continue;
    // A launcher that stops all ranks sends this one, the first, its signal first: then the other is no cause.
    if (StopSignals::was_sent()) refuse_all(stopped());
    refuse_all({kPeerFailure, fmt::format("{} ended while the ranks were gathering; see what it printed",
                                          rank_check_.facts(member.rank)->name())});
  }
}

bool Coordinator::has_heard_all() const {
  std::set<int64_t> ranks;
  for (const Member& member : members_) ranks.insert(member.rank);
  return static_cast<int64_t>(ranks.size()) + 1 >= rank_check_.size();
}

void Coordinator::refuse_members(const Refusal& refusal) {
  for (Member& member : members_) member.channel.send_line(refused_line(refusal));
  throw Error(static_cast<ExitCode>(refusal.code), refusal.text);
}

// A rank that connects after this one has gone retries until its timeout. And no rank is notified before the others are
// there: a launcher that sees one rank end may end this one before it has said why.
void Coordinator::refuse_all(const Refusal& refusal) {
  const Deadline limit = Clock::now() + kRefusalLimit;
  while (!has_heard_all() && Clock::now() < limit && StopSignals::received() == 0) hear_callers(limit);
  refuse_members(refusal);
}

void Coordinator::welcome() {
  callers_.clear();
  for (Member& member : members_) {
    member.channel.set_longest_line(kMembersLine);
    member.channel.send_line(welcome_line(
        {rank_check_.core_share(member.rank), rank_check_.facts(0)->name(), rank_check_.place(member.rank)}));
  }
  welcomed_ = true;
  table_->on_change([this] { wake_.ring(); });
  thread_ = std::thread([this] { watch(); });
}

// ---- watching, on the hub's thread

void Coordinator::watch() {
  for (;;) {
    std::vector<pollfd> entries{{wake_.descriptor(), POLLIN, 0}};
    for (const Member& member : members_) {
      const short events = member.channel.has_unsent() ? POLLIN | POLLOUT : POLLIN;
      entries.push_back({member.channel.is_open() ? member.channel.descriptor() : -1, events, 0});
    }
    Deadline next = Clock::now() + std::chrono::seconds(1);
    if (cause_) next = std::min(next, announce_at_);
    if (suspected_) next = std::min(next, suspect_until_);
    if (life_.is_open()) next = std::min(next, life_.until());
    ::poll(entries.data(), entries.size(), poll_time(next));
    wake_.clear();
    for (Member& member : members_) {
      if (member.is_gone) continue;
      if (member.channel.has_unsent()) member.channel.flush();
      hear(member);
    }
    answer_waiting();
    {
      const std::lock_guard lock(mutex_);
      if (own_failure_ && !cause_ && !(suspected_ && suspected_->rank == 0)) report(*own_failure_);
    }
    look_for_life();
    announce_when_due();
    if (say_farewell()) return;
    const std::lock_guard lock(mutex_);
    // While leave() waits, a cause that is about to be announced ends the process.
    if (stop_ && !(leaving_ && cause_)) return;
  }
}

void Coordinator::hear(Member& member) {
  if (member.channel.is_open()) member.channel.read_arrived();  // else it was lost while it was welcomed
  while (const std::optional<std::string> line = member.channel.take_line()) {
    if (take(member, parse_message(*line))) continue;
    report(
        {member.rank, 0, fmt::format("{} sent a message that cannot be read", rank_check_.facts(member.rank)->name())});
  }
  member.is_gone = !member.channel.is_open();
  if (member.is_gone) lost(member);
}

bool Coordinator::take(Member& member, RankMessage message) {
  if (message.leaving) member.left = true;
  if (message.waits) {
    member.lives = true;
    if (suspected_) answers_.push_back({member.rank, *message.waits});
  }
  if (message.asks) {
    member.channel.send_line(asked_line(), kAtOnce);
    ask_for_life(member.rank, *message.asks);
  }
  if (message.store) answer_store(member, *message.store, Clock::now() + message.store->within);
  if (message.failed) {
    member.channel.send_line(heard_line(), kAtOnce);
    report({member.rank, message.failed->code,
            fmt::format("{} failed with exit code {}: {}", rank_check_.facts(member.rank)->name(), message.failed->code,
                        message.failed->text)});
  }
  return message.is_understood;
}

/// This thread waits for none of them: one may be stopped.
void Coordinator::send_to_all(const std::string& line) {
  for (Member& member : members_) member.channel.send_line(line, kAtOnce);
}

void Coordinator::answer_store(Member& member, const StoreCall& call, Deadline until) {
  const std::optional<StoreAnswer> answer = table_->answer(call);
  if (!answer) member.store_calls.emplace_back(call, until);
  if (answer && call.kind != StoreCall::Kind::set) member.channel.send_line(stored_line(*answer), kAtOnce);
}

void Coordinator::answer_waiting() {
  for (Member& member : members_) {
    for (auto& [call, until] : std::exchange(member.store_calls, {})) {
      if (Clock::now() < until) answer_store(member, call, until);
    }
  }
}

void Coordinator::lost(const Member& member) {
  if (member.left) return;
  if (cause_) {
    if (cause_->rank == member.rank) announce_at_ = Clock::now();
    return;
  }
  // One that has said why it fails is gone because of that.
  if (suspected_ && suspected_->rank == member.rank) return;
  report({member.rank, 0,
          fmt::format("{} ended without a word: it crashed or was killed", rank_check_.facts(member.rank)->name())});
}

void Coordinator::report(Cause cause) {
  if (cause_) return;
  // At once: what a device finishes after its peers are torn down may be no result.
  if (cause.rank != 0 && final_message_) final_message_->say();
  if (cause.code == kPeerFailure) {
    if (!suspected_) suspect(std::move(cause));
    return;
  }
  // A rank that failed is given time to end first; one that is gone, and this one, need none.
  const bool ends_later = cause.code != 0 && cause.rank != 0;
  announce_at_ = Clock::now() + (ends_later ? kFirstToEndLimit : std::chrono::seconds(0));
  cause_ = std::move(cause);
}

void Coordinator::suspect(Cause cause) {
  suspect_until_ = Clock::now() + kTrueCauseLimit;
  suspected_ = std::move(cause);
  answers_.push_back({0, waits_->now()});
  send_to_all(asked_line());
}

Cause Coordinator::found_from_waits() const {
  const WaitEnd end = end_of_waits(answers_, suspected_->rank);
  if (end.rank < 0) return *suspected_;
  const std::string sign =
      end.answers ? "hangs: it waits for no other rank, and the others wait for it" : std::string(kNoSignOfLife);
  return {end.rank, end.answers ? static_cast<int>(ExitCode::hang) : 0,
          fmt::format("{} {}; {}", rank_check_.facts(end.rank)->name(), sign, suspected_->text), !end.answers};
}

void Coordinator::ask_for_life(int64_t asker, std::chrono::milliseconds patience) {
  if (cause_ || suspected_ || life_.is_open()) return;
  life_asker_ = asker;
  life_.ask(Clock::now(), patience);
  for (Member& member : members_) member.lives = false;
  send_to_all(asked_line());
}

void Coordinator::look_for_life() {
  if (cause_ || suspected_) return life_.close();
  if (const auto patience = waits_->question_due(Clock::now())) ask_for_life(0, *patience);
  if (!life_.is_open()) return;
  const Deadline now = Clock::now();
  const int64_t silent = lowest_silent();
  if (silent < 0) {
    life_.close();
    waits_->note_life(now);
  } else if (life_.is_overdue(now)) {
    report({silent, 0,
            fmt::format("{} {}; rank {}, which waits for the others, has had it asked for {} s in vain",
                        rank_check_.facts(silent)->name(), kNoSignOfLife, life_asker_, life_.open_for(now).count()),
            /*is_silent=*/true});
  }
}

int64_t Coordinator::lowest_silent() const {
  int64_t lowest = -1;
  for (const Member& member : members_) {
    if (member.lives || member.left || member.is_gone) continue;
    if (lowest < 0 || member.rank < lowest) lowest = member.rank;
  }
  return lowest;
}

void Coordinator::announce_when_due() {
  if (!cause_ && suspected_ && Clock::now() >= suspect_until_) {
    cause_ = found_from_waits();
    suspected_.reset();
    announce_at_ = Clock::now();
  }
  if (!cause_ || Clock::now() < announce_at_) return;
  if (!announced_) {
    announced_ = true;
    send_to_all(ended_line(*cause_));
    if (cause_->rank != 0) {
      tell_(cause_->text, /*aloud=*/true);
      // The last to go: the store lives here.
      wait_until_gone(Clock::now() + kFirstToEndLimit);
      cause_->is_silent ? end_for_silent_peer() : end_for_peer();
    }
    if (is_hanging_itself()) {
      tell_(cause_->text, /*aloud=*/true);
      end_hanging();
    }
    announce_at_ = Clock::now() + kOwnEndLimit;  // now the limit of this rank's own tear-down
    const std::lock_guard lock(mutex_);
    own_failure_announced_ = true;
    changed_.notify_all();
    return;
  }
  end_stuck(own_failure_->code, own_failure_->text);
}

bool Coordinator::is_hanging_itself() {
  const std::lock_guard lock(mutex_);
  return !own_failure_;
}

void Coordinator::wait_until_gone(Deadline deadline) {
  for (Member& member : members_) {
    if (cause_->is_silent && member.rank == cause_->rank) continue;
    member.channel.send_line({}, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    while (member.channel.is_open() && Clock::now() < deadline) {
      if (!member.channel.wait_line(deadline)) break;
    }
  }
}

bool Coordinator::say_farewell() {
  const std::lock_guard lock(mutex_);
  if (!leaving_ || cause_) return false;
  const bool all_left = std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.left; });
  if (!all_left && !stop_) return false;
  for (Member& member : members_) {
    if (!member.left) unfinished_.push_back(member.rank);
    member.channel.send_line(farewell_line());
  }
  done_ = true;
  changed_.notify_all();
  return true;
}

// ---- called by rank 0's main thread

c10::intrusive_ptr<c10d::Store> Coordinator::store() {
  return make_run_store([table = table_](const StoreCall& call) { return table->wait_answer(call); });
}

bool Coordinator::fail(int code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Cause{0, code, text};
  lock.unlock();
  wake_.ring();
  lock.lock();
  // When another rank is the cause, the watching thread ends the process while this one waits.
  changed_.wait_for(lock, kTrueCauseLimit + kFirstToEndLimit + kOwnEndLimit, [this] { return own_failure_announced_; });
  return false;
}

std::vector<int64_t> Coordinator::leave(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  wake_.ring();
  if (!changed_.wait_for(lock, limit, [this] { return done_; })) {
    stop_ = true;
    wake_.ring();
    changed_.wait(lock, [this] { return done_; });
  }
  return unfinished_;
}

}  // namespace titan
