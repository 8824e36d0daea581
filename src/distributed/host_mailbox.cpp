#include "host_mailbox.h"

#include <ATen/ATen.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>
#include <thread>

#include "titan/base/error.h"
#include "titan/distributed/communicator.h"

namespace titan {
namespace {

at::Tensor message_in(const SharedSegment& envelope, const std::vector<at::Tensor>& tensors) {
  return at::from_blob(envelope.data(), {total_elements(tensors)}, tensors[0].options());
}

std::string name_of(const std::string& key, uint32_t envelope) { return key + "/" + std::to_string(envelope); }

}  // namespace

void MailboxSide::await(SharedCounter& counter, uint32_t count, std::chrono::milliseconds timeout) const {
  if (counter.reached(count)) return;
  if (!members->wait_for(peer, [&] { return counter.wait_for(count, timeout); })) members->fail_silent(peer, timeout);
}

uint32_t Outbox::free_envelope(int64_t bytes) {
  for (size_t i = 0; i < envelopes_.size(); ++i) {
    const Envelope& envelope = envelopes_[i];
    const bool taken = !envelope.used || side_.ring->taken.reached(envelope.message + 1);
    if (taken && envelope.memory->bytes() >= bytes) return static_cast<uint32_t>(i);
  }
  const auto index = static_cast<uint32_t>(envelopes_.size());
  envelopes_.push_back({SharedSegment::create(bytes)});
  side_.store->set(name_of(side_.key, index), envelopes_.back().memory->address());
  return index;
}

void Outbox::send(const std::vector<at::Tensor>& tensors, std::chrono::milliseconds timeout) {
  const uint32_t number = sent_++;
  if (number >= MailboxRing::kLetters) side_.await(side_.ring->taken, number - MailboxRing::kLetters + 1, timeout);
  const int64_t bytes = total_elements(tensors) * static_cast<int64_t>(tensors[0].element_size());
  const uint32_t index = free_envelope(bytes);
  Envelope& envelope = envelopes_[index];
  envelope.message = number;
  envelope.used = true;
  pack(tensors, message_in(*envelope.memory, tensors));
  side_.ring->envelope_of[number % MailboxRing::kLetters] = index;
  side_.ring->sent.raise();
}

uint32_t Inbox::expect(std::vector<at::Tensor> outputs) {
  outputs_.push_back(std::move(outputs));
  return expected_++;
}

void Inbox::wait(uint32_t number, std::chrono::milliseconds timeout) {
  while (static_cast<int32_t>(taken_ - number) <= 0) {
    side_.await(side_.ring->sent, taken_ + 1, timeout);
    const std::vector<at::Tensor> outputs = std::move(outputs_.front());
    outputs_.pop_front();
    const SharedSegment& from = envelope(side_.ring->envelope_of[taken_ % MailboxRing::kLetters], timeout);
    unflatten(message_in(from, outputs), outputs);
    side_.ring->taken.raise();
    ++taken_;
  }
}

SharedSegment& Inbox::envelope(uint32_t index, std::chrono::milliseconds timeout) {
  if (envelopes_.size() <= index) envelopes_.resize(index + 1);
  if (!envelopes_[index]) {
    side_.store->wait({name_of(side_.key, index)}, timeout);
    envelopes_[index] = SharedSegment::open(side_.store->get_to_str(name_of(side_.key, index)));
  }
  return *envelopes_[index];
}

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t),
              "counters are shared between processes and given to the kernel");

// Not FUTEX_PRIVATE_FLAG: the waiters are other processes.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit) {
  const timespec relative{.tv_sec = limit.count() / 1'000'000'000, .tv_nsec = limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &relative, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

void SharedCounter::raise() {
  value_.fetch_add(1);
  if (sleepers_.load() > 0) wake_all(value_);
}

bool SharedCounter::wait_for(uint32_t count, std::chrono::milliseconds timeout) {
  // Yields before it sleeps: the process that will raise the counter may need this core.
  for (int tries = 0; tries < 64; ++tries) {
    if (reached(count)) return true;
    std::this_thread::yield();
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sleepers_.fetch_add(1);
  bool arrived = false;
  while (true) {
    const uint32_t seen = value_.load();
    arrived = static_cast<int32_t>(seen - count) >= 0;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (arrived || left <= std::chrono::nanoseconds(0)) break;
    sleep_while(value_, seen, left);
  }
  sleepers_.fetch_sub(1);
  return arrived;
}

}  // namespace titan
