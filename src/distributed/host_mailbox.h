// A counter in shared memory that one process increments and others wait for. Waiting spins briefly, then sleeps in the
// kernel until the counter changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "titan/distributed/communicator_members.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/distributed/peer_memory.h"

namespace titan {

/// A count in zeroed shared memory, on a cache line of its own. Counts wrap; two counts that are compared differ by far
/// less than 2^31.
class alignas(64) SharedCounter {
 public:
  /// Adds one. What this process wrote before is visible to a process that sees the new count.
  void raise();
  bool reached(uint32_t count) const { return static_cast<int32_t>(value_.load() - count) >= 0; }
  /// False when the count was not reached within `timeout`.
  bool wait_for(uint32_t count, std::chrono::milliseconds timeout);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

// Messages from one rank of a host to another through shared memory, in the order of sending. A send does not wait for
// the receiver: the message stays in an envelope (a buffer) until it is received, and the envelope is then reused.
// There are as many envelopes as messages were in flight at the same time.

/// The state shared by both sides of a pair, in zeroed shared memory.
struct MailboxRing {
  /// Maximum number of messages in flight per pair; a sender that is further ahead waits. A power of two: numbers of
  /// messages wrap at 2^32, and their slots must not jump there.
  static constexpr uint32_t kLetters = 64;

  SharedCounter sent;
  SharedCounter taken;
  uint32_t envelope_of[kLetters];  // by message number
};

/// One direction of one pair: from this rank, or to it.
struct MailboxSide {
  MailboxRing* ring;
  c10::intrusive_ptr<c10d::Store> store;
  std::string key;  // of the pair, in `store`: addresses of its envelopes
  std::shared_ptr<const CommunicatorMembers> members;
  int64_t peer;

  /// Throws Error(peer_failure) when the other side does not raise `counter` to `count` within `timeout`.
  void await(SharedCounter& counter, uint32_t count, std::chrono::milliseconds timeout) const;
};

class Outbox {
 public:
  explicit Outbox(MailboxSide side) : side_(std::move(side)) {}
  /// Copies the `tensors` (any shapes, one message). Throws Error(peer_failure) when kLetters messages are unread after
  /// `timeout`.
  void send(const std::vector<at::Tensor>& tensors, std::chrono::milliseconds timeout);
  /// Waits until all messages are received: unread messages are lost when this process exits.
  void drain(std::chrono::milliseconds timeout) { side_.ring->taken.wait_for(sent_, timeout); }

 private:
  struct Envelope {
    std::shared_ptr<SharedSegment> memory;
    uint32_t message = 0;  // the last one that used it
    bool used = false;
  };

  uint32_t free_envelope(int64_t bytes);

  MailboxSide side_;
  uint32_t sent_ = 0;
  std::vector<Envelope> envelopes_;
};

class Inbox {
 public:
  explicit Inbox(MailboxSide side) : side_(std::move(side)) {}
  /// The next message will be copied to `outputs` (any shapes). Returns its number, for `wait`.
  uint32_t expect(std::vector<at::Tensor> outputs);
  /// Blocks until message `number` and all earlier ones are in their outputs. Throws Error(peer_failure) after
  /// `timeout`.
  void wait(uint32_t number, std::chrono::milliseconds timeout);

 private:
  SharedSegment& envelope(uint32_t index, std::chrono::milliseconds timeout);

  MailboxSide side_;
  uint32_t expected_ = 0;
  uint32_t taken_ = 0;
  std::deque<std::vector<at::Tensor>> outputs_;  // of any shapes, by message
  std::vector<std::shared_ptr<SharedSegment>> envelopes_;
};

}  // namespace titan
