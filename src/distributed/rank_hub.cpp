#include "rank_hub.h"

#include <poll.h>

#include <algorithm>
#include <set>

#include "titan/base/error.h"
#include "titan/base/stop_signals.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

Refusal stopped() {
  return {static_cast<int>(ExitCode::interrupted), "stopped by a signal while the ranks were gathering"};
}

/// The end of a sentence about ranks that do not come.
std::string words_for_elsewhere(const std::string& host) {
  if (host.empty() || names_this_machine(host)) return {};
  return fmt::format("; and see to MASTER_ADDR or comm.master: {} is no address of this host, where rank 0 is", host);
}

}  // namespace

RankHub::RankHub(Descriptor listener, std::string run, RankFacts zero, PeerFailed tell,
                 std::shared_ptr<PeerWaits> waits, std::shared_ptr<LastWords> last_words)
    : listener_(std::move(listener)),
      run_(std::move(run)),
      roll_call_(std::move(zero)),
      tell_(std::move(tell)),
      waits_(std::move(waits)),
      last_words_(std::move(last_words)) {}

RankHub::~RankHub() {
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

const RollCall& RankHub::gather(Deadline deadline, const std::string& host) {
  const RankFacts& zero = *roll_call_.facts(0);
  if (!zero.problem.empty()) refuse_all({zero.problem_code, zero.problem});
  const Deadline begin = Clock::now();
  while (!roll_call_.is_complete()) {
    if (StopSignals::received() != 0) refuse_members(stopped());
    if (Clock::now() >= deadline) {
      const auto waited = std::chrono::round<std::chrono::seconds>(deadline - begin).count();
      refuse_members(
          {static_cast<int>(ExitCode::launcher),
           fmt::format("{} of {} did not come within {} s (comm.init_timeout_seconds); see whether they were started "
                       "and what they printed{}",
                       roll_call_.missing(), roll_call_.size(), waited, words_for_elsewhere(host))});
    }
    for (RankFacts& facts : hear_callers(deadline)) {
      if (const std::optional<Refusal> refusal = roll_call_.add(std::move(facts))) refuse_all(*refusal);
    }
    check_members_stay();
  }
  if (const std::optional<Refusal> refusal = roll_call_.settle()) refuse_all(*refusal);
  listener_.close();
  return roll_call_;
}

std::vector<RankFacts> RankHub::hear_callers(Deadline deadline) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const Channel& caller : callers_) entries.push_back({caller.descriptor(), POLLIN, 0});
  for (const Member& member : members_) {
    entries.push_back({member.channel.is_open() ? member.channel.descriptor() : -1, POLLIN, 0});
  }
  ::poll(entries.data(), entries.size(), poll_time(deadline));
  while (std::optional<Channel> caller = Channel::accept(listener_)) {
    if (caller->send_line(greeting_line(run_))) callers_.push_back(std::move(*caller));
  }
  std::vector<RankFacts> came;
  std::erase_if(callers_, [&](Channel& caller) {
    caller.read_arrived();
    const std::optional<std::string> line = caller.take_line();
    if (!line) return !caller.is_open();
    std::optional<RankFacts> facts = RankFacts::from_json(*line);
    if (!facts) return true;  // a stranger
    members_.push_back({facts->rank, std::move(caller)});
    came.push_back(std::move(*facts));
    return true;
  });
  for (Member& member : members_) member.channel.read_arrived();
  return came;
}

void RankHub::check_members_stay() {
  for (const Member& member : members_) {
    if (member.channel.is_open()) continue;
    // A launcher that stops all ranks sends this one, the first, its signal first: then the other is no cause.
    if (StopSignals::was_sent()) refuse_all(stopped());
    refuse_all({kPeerFailure, fmt::format("{} ended while the ranks were gathering; see what it printed",
                                          roll_call_.facts(member.rank)->name())});
  }
}

bool RankHub::has_heard_all() const {
  std::set<int64_t> ranks;
  for (const Member& member : members_) ranks.insert(member.rank);
  return static_cast<int64_t>(ranks.size()) + 1 >= roll_call_.size();
}

void RankHub::refuse_members(const Refusal& refusal) {
  for (Member& member : members_) member.channel.send_line(refused_line(refusal));
  throw Error(static_cast<ExitCode>(refusal.code), refusal.text);
}

// Whoever comes after this rank has gone looks for it until its time is up. And nobody is told before the others are
// there: a launcher that sees one rank end may end this one before it has said why.
void RankHub::refuse_all(const Refusal& refusal) {
  const Deadline limit = Clock::now() + kRefusalLimit;
  while (!has_heard_all() && Clock::now() < limit && StopSignals::received() == 0) hear_callers(limit);
  refuse_members(refusal);
}

void RankHub::welcome(uint16_t store_port) {
  for (Member& member : members_) {
    member.channel.send_line(welcome_line(
        {store_port, roll_call_.core_share(member.rank), roll_call_.facts(0)->name(), roll_call_.place(member.rank)}));
  }
  welcomed_ = true;
  thread_ = std::thread([this] { watch(); });
}

// ---- watching, on the hub's thread

void RankHub::watch() {
  for (;;) {
    std::vector<pollfd> entries{{wake_.descriptor(), POLLIN, 0}};
    for (const Member& member : members_) {
      entries.push_back({member.channel.is_open() ? member.channel.descriptor() : -1, POLLIN, 0});
    }
    Deadline next = Clock::now() + std::chrono::seconds(1);
    if (cause_) next = std::min(next, announce_at_);
    if (suspected_) next = std::min(next, suspect_until_);
    if (life_.is_open()) next = std::min(next, life_.until());
    ::poll(entries.data(), entries.size(), poll_time(next));
    wake_.clear();
    for (Member& member : members_) {
      if (!member.is_gone) hear(member);
    }
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

void RankHub::hear(Member& member) {
  if (member.channel.is_open()) member.channel.read_arrived();  // else it was lost while it was welcomed
  while (const std::optional<std::string> line = member.channel.take_line()) {
    const RankMessage message = parse_message(*line);
    if (message.leaving) member.left = true;
    if (message.waits) {
      member.lives = true;
      if (suspected_) answers_.push_back({member.rank, *message.waits});
    }
    if (message.asks) {
      member.channel.send_line(asked_line());
      ask_for_life(member.rank, *message.asks);
    }
    if (message.failed) {
      member.channel.send_line(heard_line());
      report({member.rank, message.failed->code,
              fmt::format("{} failed with exit code {}: {}", roll_call_.facts(member.rank)->name(),
                          message.failed->code, message.failed->text)});
    }
  }
  member.is_gone = !member.channel.is_open();
  if (member.is_gone) lost(member);
}

void RankHub::lost(const Member& member) {
  if (member.left) return;
  if (cause_) {
    if (cause_->rank == member.rank) announce_at_ = Clock::now();
    return;
  }
  // One that has said why it fails is gone because of that.
  if (suspected_ && suspected_->rank == member.rank) return;
  report({member.rank, 0,
          fmt::format("{} ended without a word: it crashed or was killed", roll_call_.facts(member.rank)->name())});
}

void RankHub::report(Cause cause) {
  if (cause_) return;
  // At once: what a device finishes after its peers are torn down may be no result.
  if (cause.rank != 0 && last_words_) last_words_->say();
  if (cause.code == kPeerFailure) {
    if (!suspected_) suspect(std::move(cause));
    return;
  }
  // A rank that failed is given time to end first; one that is gone, and this one, need none.
  const bool ends_later = cause.code != 0 && cause.rank != 0;
  announce_at_ = Clock::now() + (ends_later ? kFirstToEndLimit : std::chrono::seconds(0));
  cause_ = std::move(cause);
}

void RankHub::suspect(Cause cause) {
  suspect_until_ = Clock::now() + kTrueCauseLimit;
  suspected_ = std::move(cause);
  answers_.push_back({0, waits_->now()});
  for (Member& member : members_) member.channel.send_line(asked_line());
}

Cause RankHub::found_from_waits() const {
  const WaitEnd end = end_of_waits(answers_, suspected_->rank);
  if (end.rank < 0) return *suspected_;
  const std::string sign =
      end.answers ? "hangs: it waits for no other rank, and the others wait for it" : std::string(kNoSignOfLife);
  return {end.rank, end.answers ? static_cast<int>(ExitCode::hang) : 0,
          fmt::format("{} {}; {}", roll_call_.facts(end.rank)->name(), sign, suspected_->text), !end.answers};
}

void RankHub::ask_for_life(int64_t asker, std::chrono::milliseconds patience) {
  if (cause_ || suspected_ || life_.is_open()) return;
  life_asker_ = asker;
  life_.ask(Clock::now(), patience);
  for (Member& member : members_) {
    member.lives = false;
    member.channel.send_line(asked_line());
  }
}

void RankHub::look_for_life() {
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
                        roll_call_.facts(silent)->name(), kNoSignOfLife, life_asker_, life_.open_for(now).count()),
            /*is_silent=*/true});
  }
}

int64_t RankHub::lowest_silent() const {
  int64_t lowest = -1;
  for (const Member& member : members_) {
    if (member.lives || member.left || member.is_gone) continue;
    if (lowest < 0 || member.rank < lowest) lowest = member.rank;
  }
  return lowest;
}

void RankHub::announce_when_due() {
  if (!cause_ && suspected_ && Clock::now() >= suspect_until_) {
    cause_ = found_from_waits();
    suspected_.reset();
    announce_at_ = Clock::now();
  }
  if (!cause_ || Clock::now() < announce_at_) return;
  if (!announced_) {
    announced_ = true;
    for (Member& member : members_) member.channel.send_line(ended_line(*cause_));
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

bool RankHub::is_hanging_itself() {
  const std::lock_guard lock(mutex_);
  return !own_failure_;
}

void RankHub::wait_until_gone(Deadline deadline) {
  for (Member& member : members_) {
    if (cause_->is_silent && member.rank == cause_->rank) continue;
    while (member.channel.is_open() && Clock::now() < deadline) {
      if (!member.channel.wait_line(deadline)) break;
    }
  }
}

bool RankHub::say_farewell() {
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

bool RankHub::fail(int code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Cause{0, code, text};
  lock.unlock();
  wake_.ring();
  lock.lock();
  // When another rank is the cause, the watching thread ends the process while this one waits.
  changed_.wait_for(lock, kTrueCauseLimit + kFirstToEndLimit + kOwnEndLimit, [this] { return own_failure_announced_; });
  return false;
}

std::vector<int64_t> RankHub::leave(std::chrono::seconds limit) {
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
