#include "host_mailbox.h"

#include <ATen/ATen.h>

#include "packing.h"
#include "titan/base/error.h"

namespace titan {
namespace {

at::Tensor message_in(const SharedSegment& envelope, const std::vector<at::Tensor>& tensors) {
  return at::from_blob(envelope.data(), {total_elements(tensors)}, tensors[0].options());
}

std::string name_of(const std::string& key, uint32_t envelope) { return key + "/" + std::to_string(envelope); }

}  // namespace

void fail_silent_peer(const std::string& group, int64_t peer, std::chrono::milliseconds timeout) {
  throw Error(ExitCode::peer_failure,
              fmt::format("communication in group {} failed (its rank {} sent nothing for {:g} s); another rank has "
                          "ended or does not answer",
                          group, peer, std::chrono::duration<double>(timeout).count()));
}

Outbox::Outbox(MailboxRing* ring, c10::intrusive_ptr<c10d::Store> store, std::string key, std::string group,
               int64_t peer)
    : ring_(ring), store_(std::move(store)), key_(std::move(key)), group_(std::move(group)), peer_(peer) {}

uint32_t Outbox::free_envelope(int64_t bytes) {
  for (size_t i = 0; i < envelopes_.size(); ++i) {
    const Envelope& envelope = envelopes_[i];
    const bool taken = !envelope.used || ring_->taken.reached(envelope.message + 1);
    if (taken && envelope.memory->bytes() >= bytes) return static_cast<uint32_t>(i);
  }
  const auto index = static_cast<uint32_t>(envelopes_.size());
  envelopes_.push_back({SharedSegment::create(bytes)});
  store_->set(name_of(key_, index), envelopes_.back().memory->address());
  return index;
}

void Outbox::send(const std::vector<at::Tensor>& tensors, std::chrono::milliseconds timeout) {
  const uint32_t number = sent_++;
  if (number >= MailboxRing::kLetters && !ring_->taken.wait_for(number - MailboxRing::kLetters + 1, timeout)) {
    fail_silent_peer(group_, peer_, timeout);
  }
  const int64_t bytes = total_elements(tensors) * static_cast<int64_t>(tensors[0].element_size());
  const uint32_t index = free_envelope(bytes);
  Envelope& envelope = envelopes_[index];
  envelope.message = number;
  envelope.used = true;
  pack(tensors, message_in(*envelope.memory, tensors));
  ring_->envelope_of[number % MailboxRing::kLetters] = index;
  ring_->sent.raise();
}

Inbox::Inbox(MailboxRing* ring, c10::intrusive_ptr<c10d::Store> store, std::string key, std::string group, int64_t peer)
    : ring_(ring), store_(std::move(store)), key_(std::move(key)), group_(std::move(group)), peer_(peer) {}

uint32_t Inbox::expect(std::vector<at::Tensor> outputs) {
  outputs_.push_back(std::move(outputs));
  return expected_++;
}

void Inbox::wait(uint32_t number, std::chrono::milliseconds timeout) {
  while (static_cast<int32_t>(taken_ - number) <= 0) {
    if (!ring_->sent.wait_for(taken_ + 1, timeout)) fail_silent_peer(group_, peer_, timeout);
    const std::vector<at::Tensor> outputs = std::move(outputs_.front());
    outputs_.pop_front();
    const SharedSegment& from = envelope(ring_->envelope_of[taken_ % MailboxRing::kLetters], timeout);
    unflatten(message_in(from, outputs), outputs);
    ring_->taken.raise();
    ++taken_;
  }
}

SharedSegment& Inbox::envelope(uint32_t index, std::chrono::milliseconds timeout) {
  if (envelopes_.size() <= index) envelopes_.resize(index + 1);
  if (!envelopes_[index]) {
    store_->wait({name_of(key_, index)}, timeout);
    envelopes_[index] = SharedSegment::open(store_->get_to_str(name_of(key_, index)));
  }
  return *envelopes_[index];
}

}  // namespace titan
