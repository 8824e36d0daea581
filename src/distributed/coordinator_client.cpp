#include "coordinator_client.h"

#include <poll.h>
#include <algorithm>

#include "ending.h"
#include "titan/base/error.h"
#include "titan/distributed/rendezvous.h"

namespace titan {

namespace {

using Clock = std::chrono::steady_clock;
/// A listener that is no rank 0 is left alone after this long.
constexpr std::chrono::milliseconds kGreetingLimit{1000};
/// Rank 0 may have been started later than this rank, and waits as long from then on.
constexpr std::chrono::seconds kVerdictMargin{5};

}  // namespace

CoordinatorClient::CoordinatorClient(RankFacts facts, PeerFailed tell, std::shared_ptr<WaitForGraph> waits,
                                     std::shared_ptr<FinalMessage> final_message)
    : facts_(std::move(facts)),
      tell_(std::move(tell)),
      waits_(std::move(waits)),
      final_message_(std::move(final_message)) {}

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
  if (thread_.joinable()) thread_.join();
  if (own_failure_) channel_.keep_until_exit();
}

void CoordinatorClient::call(const std::string& host, const std::vector<uint16_t>& ports, const std::string& secret,
                             Deadline deadline) {
  const Deadline begin = Clock::now();
  std::string reason = "no time was left";
  std::string doubt;  // about who answered: says more than a connection that fails later, when rank 0 may have left
  while (Clock::now() < deadline) {
    for (const uint16_t port : ports) {
      end_at_a_signal();
      std::optional<Channel> channel = Channel::connect(host, port, kGreetingLimit, reason);
      if (!channel) continue;
      rank_zero_ = fmt::format("rank 0 ({}:{})", host, port);
      if (is_rank_zero(std::move(*channel), port, secret)) return;
      doubt = fmt::format(
          "port {} belongs to something else, or to a run with another secret (give all ranks the same TITAN_SECRET), "
          "or has too many callers",
          port);
    }
    ::poll(nullptr, 0, kRetryMilliseconds);
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

bool CoordinatorClient::is_rank_zero(Channel channel, uint16_t port, const std::string& secret) {
  const Deadline limit = Clock::now() + kGreetingLimit;
  const std::optional<std::string> greeting = channel.wait_line(limit);
  const std::optional<std::string> nonce = greeting ? parse_message(*greeting).greeting : std::nullopt;
  if (!nonce) return false;
  const Handshake handshake{secret, port, *nonce, random_secret(), facts_.rank};
  channel.send_line(hello_line({facts_.rank, handshake.caller_nonce, handshake.caller_proof()}));
  const std::optional<std::string> answer = channel.wait_line(limit);
  const std::optional<std::string> proof = answer ? parse_message(*answer).proof : std::nullopt;
  if (!proof || !is_same_proof(*proof, handshake.zero_proof())) return false;
  channel_ = std::move(channel);
  channel_.set_longest_line(kMembersLine);
  return true;
}

Welcome CoordinatorClient::join(Deadline deadline) {
  channel_.send_line(facts_.to_json());
  const Deadline latest = deadline + (deadline - Clock::now()) + kVerdictMargin;
  while (Clock::now() < latest) {
    end_at_a_signal();
    const std::optional<std::string> line =
        channel_.wait_line(std::min(latest, Clock::now() + std::chrono::seconds(1)));
    if (!line && channel_.is_open()) continue;
    const RankMessage message = line ? parse_message(*line) : RankMessage{};
    if (message.welcome) {
      rank_zero_ = message.welcome->rank_zero;
      // When rank 0 is lost, somebody on every host says so.
      witness_ = facts_.rank == 1 || facts_.rank == message.welcome->place.host_ranks.front();
      thread_ = std::thread([this] { watch(); });
      return *message.welcome;
    }
    if (message.refused) {
      // Rank 0 first: its message says why, and its exit code is the one a launcher shows.
      channel_.wait_line(Clock::now() + kFirstToEndLimit);
      const int code = facts_.problem.empty() ? message.refused->code : facts_.problem_code;
      throw RefusedByRankZero(static_cast<ExitCode>(code), message.refused->text);
    }
    break;
  }
  const char* what = channel_.is_open() ? " sent a message that cannot be read, or none" : " ended";
  throw Error(ExitCode::peer_failure,
              fmt::format("{}{} before all ranks were there; see what it printed", rank_zero_, what));
}

c10::intrusive_ptr<c10d::Store> CoordinatorClient::store() {
  {
    const std::lock_guard lock(store_calls_->mutex);
    store_calls_->send = [this](const StoreCall& call) {
      channel_.send_line(store_line(call), std::chrono::milliseconds(0));
      if (channel_.has_unsent()) wake_.ring();
    };
  }
  return make_run_store([calls = store_calls_](StoreCall call) { return calls->ask(std::move(call)); });
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
  if (asked == answers.end()) return;  // its time was up
  asked->second = std::move(answer);
  changed.notify_all();
}

// ---- watching, on the link's thread

void CoordinatorClient::watch() {
  for (;;) {
    const short events = channel_.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    pollfd entries[]{{wake_.descriptor(), POLLIN, 0}, {channel_.is_open() ? channel_.descriptor() : -1, events, 0}};
    Deadline next = Clock::now() + std::chrono::seconds(1);
    {
      const std::lock_guard lock(mutex_);
      if (own_failure_) next = std::min(next, end_at_);
      if (life_.is_open()) next = std::min(next, life_.until());
    }
    ::poll(entries, 2, poll_time(next));
    wake_.clear();
    if (channel_.has_unsent()) channel_.flush();
    hear();
    const std::lock_guard lock(mutex_);
    if (stop_ || farewell_) return;
    look_for_life();
    if (own_failure_ && Clock::now() >= end_at_) end_stuck(own_failure_->code, own_failure_->text);
  }
}

void CoordinatorClient::hear() {
  if (is_alone_) return;
  if (channel_.is_open()) channel_.read_arrived();  // else it was closed behind the welcome
  while (const std::optional<std::string> line = channel_.take_line()) {
    RankMessage message = parse_message(*line);
    const std::lock_guard lock(mutex_);
    if (!message.is_understood) {
      write_final_message();
      tell_(rank_zero_ + " sent a message that cannot be read", /*aloud=*/witness_);
      end_for_peer();
    }
    if (message.stored) store_calls_->take(*std::move(message.stored));
    if (life_.is_open()) {
      life_.close();
      waits_->note_life(Clock::now());
    }
    if (message.farewell && leaving_) {
      farewell_ = true;
      changed_.notify_all();
      return;
    }
    if (message.heard) {
      heard_ = true;
      changed_.notify_all();
    }
    if (message.asked) channel_.send_line(waits_line(waits_->now()));
    if (!message.ended) continue;
    write_final_message();
    if (message.ended->rank == facts_.rank) {
      if (!own_failure_) {
        tell_(message.ended->text, /*aloud=*/false);
        end_hanging();
      }
      is_the_cause_ = true;
      changed_.notify_all();
      continue;
    }
    // Rank 0's own end comes first, for the same reason as a refusal's.
    if (message.ended->rank == 0) channel_.wait_line(Clock::now() + kFirstToEndLimit);
    tell_(message.ended->text, /*aloud=*/false);
    message.ended->is_silent ? end_for_silent_peer() : end_for_peer();
  }
  is_alone_ = !channel_.is_open();
  if (is_alone_) rank_zero_is_gone();
}

void CoordinatorClient::rank_zero_is_gone() {
  const std::lock_guard lock(mutex_);
  if (own_failure_ && own_failure_->code != kPeerFailure) return;  // this rank ends for a reason of its own
  write_final_message();
  tell_(rank_zero_ + " ended without a word: it crashed or was killed", /*aloud=*/witness_);
  end_for_peer();
}

void CoordinatorClient::look_for_life() {
  if (own_failure_ || is_alone_) return life_.close();
  const Deadline now = Clock::now();
  if (const auto patience = waits_->question_due(now)) {
    channel_.send_line(asks_line(*patience));
    if (!life_.is_open()) life_.ask(now, *patience);
  }
  if (!life_.is_overdue(now)) return;
  // Whoever waits first is the first to know, and a launcher may end the witness before it knows.
  rank_zero_is_silent(
      fmt::format("this rank, which waits for it, has asked it for {} s in vain", life_.open_for(now).count()),
      /*aloud=*/true);
}

// ---- called by the main thread

void CoordinatorClient::write_final_message() const {
  if (final_message_) final_message_->say();
}

void CoordinatorClient::rank_zero_is_silent(const std::string& text, bool aloud) {
  write_final_message();
  tell_(fmt::format("{} {}; {}", rank_zero_, kNoSignOfLife, text), aloud);
  end_for_silent_peer();
}

bool CoordinatorClient::fail(int code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Refusal{code, text};
  const std::chrono::seconds patience = code == kPeerFailure ? kTrueCauseLimit + kFirstToEndLimit : kHeardLimit;
  const Deadline latest = Clock::now() + patience;
  end_at_ = latest + kOwnEndLimit;
  channel_.send_line(failed_line(code, text));
  wake_.ring();
  if (code != kPeerFailure) return changed_.wait_until(lock, latest, [this] { return heard_; });
  // A rank 0 whose watcher does not even say that it has heard is the one that hangs.
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

namespace {

/// The watcher waits for a second at most: looks that are further apart were kept apart by something else.
constexpr std::chrono::seconds kLongestPause{2};

}  // namespace

void HealthCheck::ask(Deadline now, std::chrono::milliseconds patience) {
  open_ = true;
  since_ = looked_at_ = now;
  until_ = now + std::max<std::chrono::milliseconds>(patience / 2, kSignOfLifeLimit);
}

bool HealthCheck::is_overdue(Deadline now) {
  if (!open_) return false;
  const auto unseen = now - looked_at_;
  looked_at_ = now;
  if (unseen > kLongestPause) until_ += unseen;
  return now >= until_;
}

std::chrono::seconds HealthCheck::open_for(Deadline now) const {
  return std::chrono::round<std::chrono::seconds>(now - since_);
}

}  // namespace titan
