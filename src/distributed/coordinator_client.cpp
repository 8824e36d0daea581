#include "coordinator_client.h"

#include <poll.h>
#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CoordinatorClient::CoordinatorClient(int64_t rank, JoinedRun run, PeerFailed peer_failed,
                                     std::shared_ptr<WaitForGraph> waits, std::shared_ptr<FinalMessage> final_message)
    : rank_(rank),
      channel_(std::move(run.channel)),
      rank_zero_(std::move(run.welcome.rank_zero)),
      witness_(rank == 1 || rank == run.welcome.place.host_ranks.front()),
      peer_failed_(std::move(peer_failed)),
      waits_(std::move(waits)),
      final_message_(std::move(final_message)),
      thread_([this] { watch(); }) {}

CoordinatorClient::~CoordinatorClient() {
  {
    const std::lock_guard lock(store_calls_->mutex);
    store_calls_->send = {};
    store_calls_->changed.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.ring();
  thread_.join();
  if (own_failure_) channel_.keep_until_exit();
}

c10::intrusive_ptr<c10d::Store> CoordinatorClient::store() {
  {
    const std::lock_guard lock(store_calls_->mutex);
    store_calls_->send = [this](const StoreCall& call) {
      channel_.send_line(store_line(call), std::chrono::milliseconds(0));
      if (channel_.has_unsent()) wake_.ring();
    };
  }
  return make_rank_store([calls = store_calls_](StoreCall call) { return calls->ask(std::move(call)); });
}

std::optional<StoreAnswer> CoordinatorClient::StoreCalls::ask(StoreCall call) {
  std::unique_lock lock(mutex);
  if (!send) return std::nullopt;
  call.id = ++last_id;
  if (call.kind != StoreCall::Kind::set) answers.emplace(call.id, std::nullopt);
  send(call);
  if (call.kind == StoreCall::Kind::set) return StoreAnswer{};
  changed.wait_for(lock, call.within, [&] { return answers[call.id] || !send; });
  return answers.extract(call.id).mapped();
}

void CoordinatorClient::StoreCalls::take(StoreAnswer answer) {
  const std::lock_guard lock(mutex);
  const auto asked = answers.find(answer.id);
  if (asked == answers.end()) return;
  asked->second = std::move(answer);
  changed.notify_all();
}

// ---- the monitoring thread

void CoordinatorClient::watch() {
  for (;;) {
    const short events = channel_.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    pollfd entries[]{{wake_.descriptor(), POLLIN, 0}, {channel_.is_open() ? channel_.descriptor() : -1, events, 0}};
    Deadline next = Clock::now() + std::chrono::seconds(1);
    {
      const std::lock_guard lock(mutex_);
      if (own_failure_) next = std::min(next, end_at_);
      if (health_.is_open()) next = std::min(next, health_.until());
    }
    ::poll(entries, 2, poll_time(next));
    wake_.clear();
    if (channel_.has_unsent()) channel_.flush();
    hear();
    const std::lock_guard lock(mutex_);
    if (stop_ || farewell_) return;
    check_health();
    if (own_failure_ && Clock::now() >= end_at_) end_stuck(own_failure_->code, own_failure_->text);
  }
}

void CoordinatorClient::hear() {
  if (channel_.is_open()) channel_.read_arrived();  // it may have closed right after the welcome message
  while (const std::optional<std::string> line = channel_.take_line()) {
    const std::lock_guard lock(mutex_);
    take(parse_message(*line));
    changed_.notify_all();
    if (farewell_) return;
  }
  if (!channel_.is_open()) rank_zero_is_gone();
}

void CoordinatorClient::take(RankMessage message) {
  if (!message.is_understood) {
    say_final_message();
    peer_failed_(rank_zero_ + " sent a message that cannot be read", /*aloud=*/witness_);
    end_for_peer();
  }
  if (message.stored) store_calls_->take(*std::move(message.stored));
  if (health_.is_open()) {
    health_.close();
    waits_->note_alive(Clock::now());
  }
  farewell_ = message.farewell && leaving_;
  if (farewell_) return;
  heard_ |= message.heard;
  if (message.asked) channel_.send_line(waits_line(answer_of(rank_, waits_->now()).waits_for));
  if (message.ended) take_end(*message.ended);
}

void CoordinatorClient::take_end(const Cause& cause) {
  say_final_message();
  if (cause.rank == rank_ && own_failure_) {
    is_the_cause_ = true;
    return;
  }
  if (cause.rank == rank_) {
    peer_failed_(cause.text, /*aloud=*/false);
    end_hanging();
  }
  // If rank 0 is the cause, it exits first: a launcher reports the first exit code.
  if (cause.rank == 0) channel_.wait_line(Clock::now() + kFirstToEndLimit);
  peer_failed_(cause.text, /*aloud=*/false);
  cause.is_silent ? end_for_silent_peer() : end_for_peer();
}

void CoordinatorClient::rank_zero_is_gone() {
  const std::lock_guard lock(mutex_);
  // This rank's own failure is the cause; rank 0 may have ended because of it.
  if (own_failure_ && own_failure_->code != kPeerFailure) return;
  say_final_message();
  peer_failed_(fmt::format("{} {}", rank_zero_, kEndedWithoutMessage), /*aloud=*/witness_);
  end_for_peer();
}

void CoordinatorClient::check_health() {
  if (own_failure_) return health_.close();
  const Deadline now = Clock::now();
  if (const auto response_timeout = waits_->health_check_due(now)) {
    channel_.send_line(asks_line(*response_timeout));
    if (!health_.is_open()) health_.ask(now, *response_timeout);
  }
  if (!health_.is_overdue(now)) return;
  // Each rank reports it: the rank that waits for rank 0 finds it first, and a launcher may end the witness earlier.
  rank_zero_is_silent(fmt::format("this rank waits for it and got no response for {} s", health_.open_for(now).count()),
                      /*aloud=*/true);
}

void CoordinatorClient::rank_zero_is_silent(const std::string& text, bool aloud) {
  say_final_message();
  peer_failed_(fmt::format("{} {}; {}", rank_zero_, kNoSignOfLife, text), aloud);
  end_for_silent_peer();
}

void CoordinatorClient::say_final_message() const {
  if (final_message_) final_message_->print();
}

// ---- called by the main thread

bool CoordinatorClient::fail(int code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Refusal{code, text};
  const std::chrono::seconds limit = code == kPeerFailure ? kTrueCauseLimit + kFirstToEndLimit : kHeardLimit;
  const Deadline latest = Clock::now() + limit;
  end_at_ = latest + kOwnEndLimit;
  channel_.send_line(failed_line(code, text));
  wake_.ring();
  if (code != kPeerFailure) return changed_.wait_until(lock, latest, [this] { return heard_; });
  // If rank 0's monitoring thread does not even acknowledge the failure, rank 0 hangs.
  if (!changed_.wait_for(lock, kTrueCauseLimit, [this] { return heard_; })) rank_zero_is_silent(text, witness_);
  changed_.wait_until(lock, latest, [this] { return is_the_cause_; });
  return true;
}

std::vector<int64_t> CoordinatorClient::leave(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  channel_.send_line(leaving_line());
  if (changed_.wait_for(lock, limit, [this] { return farewell_; })) return {};
  return {0};
}

}  // namespace titan
