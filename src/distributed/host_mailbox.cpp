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

}  // namespace titan
