// A number in shared memory that one process raises and others wait for. Waiting spins for a moment, then sleeps in the
// kernel until the number changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "titan/distributed/group_members.h"
#include "titan/distributed/mesh_groups.h"
#include "titan/distributed/peer_memory.h"

namespace titan {

/// Lives in zeroed shared memory, on a cache line of its own. Counts wrap; the difference of two that are compared
/// stays far below 2^31.
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

// Messages from one rank of a host to another through memory that they share, in the order in which they were sent.
// Sending never waits for the receiver to ask: a message is in an envelope until it is taken out, and the envelope is
// then used again. There are as many envelopes as messages were under way at the same time.

/// What both sides of a pair see, in zeroed shared memory.
struct MailboxRing {
  static constexpr uint32_t kLetters = 64;  // the most messages of a pair that may be under way

  SharedCounter sent;
  SharedCounter taken;
  uint32_t envelope_of[kLetters];  // by number of the message
};

/// One direction of one pair: from this rank, or to it.
struct MailboxSide {
  MailboxRing* ring;
  c10::intrusive_ptr<c10d::Store> store;
  std::string key;  // of the pair, in `store`: addresses of envelopes
  std::shared_ptr<const GroupMembers> members;
  int64_t peer;

  /// Throws Error(peer_failure) when the other side does not bring `counter` to `count` within `timeout`.
  void await(SharedCounter& counter, uint32_t count, std::chrono::milliseconds timeout) const;
};

class Outbox {
 public:
  explicit Outbox(MailboxSide side) : side_(std::move(side)) {}
  /// Copies the tensors. Throws Error(peer_failure) when kLetters messages were not taken within `timeout`.
  void send(const std::vector<at::Tensor>& tensors, std::chrono::milliseconds timeout);
  /// Waits until all messages were taken: memory of a process that ends is gone with its unread messages.
  void drain(std::chrono::milliseconds timeout) { side_.ring->taken.wait_for(sent_, timeout); }

 private:
  struct Envelope {
    std::shared_ptr<SharedSegment> memory;
    uint32_t message = 0;  // the last one in it
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
  /// The next message will go into `outputs`; its number, for `wait`.
  uint32_t expect(std::vector<at::Tensor> outputs);
  /// Message `number` and those before it are in their outputs after this. Throws Error(peer_failure) when it does not
  /// come within `timeout`.
  void wait(uint32_t number, std::chrono::milliseconds timeout);

 private:
  SharedSegment& envelope(uint32_t index, std::chrono::milliseconds timeout);

  MailboxSide side_;
  uint32_t expected_ = 0;
  uint32_t taken_ = 0;
  std::deque<std::vector<at::Tensor>> outputs_;
  std::vector<std::shared_ptr<SharedSegment>> envelopes_;
};

}  // namespace titan
