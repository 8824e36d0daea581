#include "coordinator.h"

#include <algorithm>
#include <utility>

#include "titan/base/error.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// Send timeout of the monitoring thread, which must not block on a stopped rank.
constexpr std::chrono::milliseconds kAtOnce{0};

/// The poller's key of the wake-up descriptor; members have their index.
constexpr uint64_t kWakeKey = ~uint64_t{0};

std::vector<std::string> names_of(const RankCheck& check) {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < check.size(); ++rank) names.push_back(check.facts(rank)->name());
  return names;
}

}  // namespace

Coordinator::Coordinator(GatheredRanks ranks, PeerFailed peer_failed, std::shared_ptr<WaitForGraph> waits,
                         std::shared_ptr<FinalMessage> final_message)
    : peer_failed_(std::move(peer_failed)),
      waits_(std::move(waits)),
      final_message_(std::move(final_message)),
      diagnosis_(names_of(ranks.check)) {
  const std::string name = ranks.check.facts(0)->name();
  poller_.add(wake_.descriptor(), kWakeKey);
  members_.reserve(ranks.channels.size());
  for (auto& [rank, channel] : ranks.channels) {
    channel.set_longest_line(kMembersLine);
    poller_.add(channel.descriptor(), members_.size());
    Member& member = members_.emplace_back(Member{rank, std::move(channel)});
    member.channel.send_line(welcome_line({ranks.check.core_share(rank), name, ranks.check.place(rank)}));
    send(member, {});
  }
  table_->on_ready([this] { wake_.ring(); });
  thread_ = std::thread([this] { watch(); });
}

Coordinator::~Coordinator() {
  table_->on_ready({});
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.ring();
  thread_.join();
  if (!own_failure_) return;
  // The other ranks wait until this process has exited.
  for (Member& member : members_) member.channel.keep_until_exit();
}

// ---- the monitoring thread

void Coordinator::watch() {
  // The rendezvous may have read their first messages already: for those, no descriptor becomes ready.
  for (Member& member : members_) hear(member);
  for (;;) {
    // At least every second: a longer pause counts as one in which this process was stopped (kLongestPause).
    const Deadline latest = Clock::now() + std::chrono::seconds(1);
    const Deadline next = announced_ ? std::min(latest, end_at_) : diagnosis_.next(latest);
    serve(next);
    answer_waiting();
    {
      const std::lock_guard lock(mutex_);
      if (own_failure_ && !diagnosis_.suspects(0)) report(*own_failure_);
    }
    check_health();
    announce_when_due();
    if (say_farewell()) return;
    const std::lock_guard lock(mutex_);
    // While leave() waits, a cause that is not announced yet still ends the process.
    if (stop_ && !(leaving_ && diagnosis_.cause())) return;
  }
}

void Coordinator::serve(Deadline until) {
  for (const uint64_t key : poller_.wait(poll_time(until))) {
    if (key == kWakeKey) {
      wake_.clear();
      continue;
    }
    Member& member = members_[key];
    if (member.is_gone) continue;
    send(member, {});
    hear(member);
  }
}

void Coordinator::send(Member& member, const std::string& line) {
  if (member.is_gone) return;
  member.channel.send_line(line, kAtOnce);
  const bool wants_writes = member.channel.has_unsent();
  if (std::exchange(member.wants_writes, wants_writes) == wants_writes) return;
  const auto index = static_cast<uint64_t>(&member - members_.data());
  poller_.want_writes(member.channel.descriptor(), index, wants_writes);
}

void Coordinator::hear(Member& member) {
  if (member.channel.is_open()) member.channel.read_arrived();  // it may have closed right after the welcome message
  while (const std::optional<std::string> line = member.channel.take_line()) {
    if (take(member, parse_message(*line))) continue;
    report(diagnosis_.cause_of(member.rank, 0, "sent a message that cannot be read"));
  }
  member.is_gone = !member.channel.is_open();
  if (!member.is_gone) return;
  poller_.remove(member.channel.descriptor());
  diagnosis_.excuse(member.rank);
  if (member.left) return;
  if (const std::optional<Cause> cause = diagnosis_.lose(member.rank, Clock::now())) report(*cause);
}

bool Coordinator::take(Member& member, RankMessage message) {
  if (message.leaving) {
    left_ += member.left ? 0 : 1;
    member.left = true;
    diagnosis_.excuse(member.rank);
  }
  if (message.waits) diagnosis_.answer({member.rank, *message.waits});
  if (message.asks) {
    send(member, asked_line());  // at once: the answer itself shows that this rank is alive
    if (diagnosis_.ask(member.rank, *message.asks, Clock::now())) ask_all();
  }
  if (message.store) {
    const auto index = static_cast<size_t>(&member - members_.data());
    const Deadline until = Clock::now() + message.store->within;
    answer_store({index, *std::move(message.store), until});
  }
  if (message.failed) {
    send(member, heard_line());
    const Refusal& failed = *message.failed;
    report(diagnosis_.cause_of(member.rank, failed.code,
                               fmt::format("failed with exit code {}: {}", failed.code, failed.text)));
  }
  return message.is_understood;
}

void Coordinator::send_to_all(const std::string& line) {
  for (Member& member : members_) send(member, line);
}

void Coordinator::ask_all() {
  diagnosis_.answer(answer_of(0, waits_->now()));
  send_to_all(asked_line());
}

void Coordinator::answer_store(const WaitingCall& waiting) {
  const std::optional<StoreAnswer> answer = table_->answer_or_keep(waiting);
  if (answer && waiting.call.kind != StoreCall::Kind::set) send(members_[waiting.caller], stored_line(*answer));
}

void Coordinator::answer_waiting() {
  for (const WaitingCall& waiting : table_->take_ready()) {
    if (Clock::now() < waiting.until) answer_store(waiting);
  }
}

void Coordinator::report(Cause cause) {
  if (diagnosis_.cause()) return;
  // Print before waiting: results that a device computes after its peers were torn down may be wrong.
  if (cause.rank != 0 && final_message_) final_message_->print();
  if (diagnosis_.report(std::move(cause), Clock::now())) ask_all();
}

void Coordinator::check_health() {
  const Deadline now = Clock::now();
  const auto response_timeout = waits_->health_check_due(now);
  if (response_timeout && diagnosis_.ask(0, *response_timeout, now)) ask_all();
  if (diagnosis_.take_all_alive(now)) waits_->note_alive(now);
  if (const std::optional<Cause> silent = diagnosis_.overdue(now)) report(*silent);
}

void Coordinator::announce_when_due() {
  const Deadline now = Clock::now();
  if (announced_) {
    if (now < end_at_) return;
    const std::lock_guard lock(mutex_);
    end_stuck(own_failure_->code, own_failure_->text);
  }
  const Cause* cause = diagnosis_.announced(now);
  if (!cause) return;
  send_to_all(ended_line(*cause));
  if (cause->rank != 0) {
    peer_failed_(cause->text, /*aloud=*/true);
    // Rank 0 exits last, since its process holds the store.
    wait_until_gone(*cause, Clock::now() + kFirstToEndLimit);
    cause->is_silent ? end_for_silent_peer() : end_for_peer();
  }
  const std::lock_guard lock(mutex_);
  if (!own_failure_) {  // this rank is the one that others wait for: its main thread may never return
    peer_failed_(cause->text, /*aloud=*/true);
    end_hanging();
  }
  end_at_ = Clock::now() + kOwnEndLimit;
  announced_ = true;
  changed_.notify_all();
}

void Coordinator::wait_until_gone(const Cause& cause, Deadline deadline) {
  for (Member& member : members_) {
    if (cause.is_silent && member.rank == cause.rank) continue;
    member.channel.send_line({}, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    while (member.channel.is_open() && Clock::now() < deadline) {
      if (!member.channel.wait_line(deadline)) break;
    }
  }
}

bool Coordinator::say_farewell() {
  const std::lock_guard lock(mutex_);
  if (!leaving_ || diagnosis_.cause()) return false;
  if (left_ < members_.size() && !stop_) return false;
  unfinished_.emplace();
  for (Member& member : members_) {
    if (!member.left) unfinished_->push_back(member.rank);
    member.channel.send_line(farewell_line());
  }
  changed_.notify_all();
  return true;
}

// ---- called by rank 0's main thread

c10::intrusive_ptr<c10d::Store> Coordinator::store() {
  return make_rank_store([table = table_](const StoreCall& call) { return table->wait_answer(call); });
}

bool Coordinator::fail(int code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Cause{0, code, text};
  wake_.ring();
  // If another rank is the cause, the monitoring thread ends the process during this wait.
  changed_.wait_for(lock, kTrueCauseLimit + kFirstToEndLimit + kOwnEndLimit, [this] { return announced_; });
  return false;
}

ControlTraffic Coordinator::traffic() const {
  ControlTraffic total;
  for (const Member& member : members_) total += member.channel.traffic();
  return total;
}

std::vector<int64_t> Coordinator::leave(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  wake_.ring();
  const auto is_done = [this] { return unfinished_.has_value(); };
  if (!changed_.wait_for(lock, limit, is_done)) {
    stop_ = true;
    wake_.ring();
    changed_.wait(lock, is_done);
  }
  return *unfinished_;
}

}  // namespace titan
