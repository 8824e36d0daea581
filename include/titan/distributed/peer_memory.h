// Memory of every rank of a group that all its ranks can read and write, with signals to say when: what chunked,
// overlapped communication is made of. Between CPU ranks of one host it is shared memory of the system, between GPUs of
// one host each other's device memory (Cuda::peer_memory).
#pragma once

#include <ATen/core/Tensor.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "titan/distributed/communicator.h"

namespace titan {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Bytes of each rank's buffer.
  virtual int64_t capacity() const = 0;

  /// A view into the buffer of rank `owner`: `shape` of `type` from byte `offset` on.
  virtual at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) = 0;

  /// Raises the count (from this rank, to `peer`, `channel`) by one. What this rank wrote before is visible to a rank
  /// that sees the count. Every signal is waited for once, and before the one after it is given.
  virtual void signal(int64_t peer, int channel) = 0;
  /// Waits until (from `peer`, to this rank, `channel`) has been signalled `count` times in all. Calls come with counts
  /// 1, 2, 3, …. On the CPU throws Error(peer_failure) naming the peer when it did not come within the timeout.
  virtual void wait(int64_t peer, int channel, uint64_t count) = 0;

  /// For waits that begin from here on.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Does `transfer` beside what the caller does next: in a thread of its own, or on a stream of its own behind what
  /// the caller has enqueued. `transfer` may call everything above; tensors it writes were made by the caller.
  virtual Pending beside(std::function<void()> transfer) = 0;
};

inline constexpr int kPeerChannels = 4;

/// Shared memory between processes (or threads) of one host, `capacity` bytes a rank; they meet through `store` under
/// `name`. Throws Error(launcher) when the memory cannot be had or another rank does not come.
std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout);

/// For a rank that is alone and acts as one of `size`: every rank's buffer is its own, and there are no waits.
std::unique_ptr<PeerMemory> make_fake_peer_memory(int64_t rank, int64_t size, int64_t capacity,
                                                  const at::Device& device);

// A piece of memory that processes of one host share. It has no name in any file system: a process that knows its
// address opens it through its owner's file descriptor, nothing is left behind however a run ends, and no limit of
// /dev/shm applies.

class SharedSegment {
 public:
  /// `bytes` of zeros, all taken now: memory that is missing is an error here and not a signal at the first touch.
  /// Throws Error(launcher) when they cannot be had.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);
  /// The segment behind another's `address`. Throws Error(peer_failure) when its owner cannot be seen: it has ended, or
  /// is of another container; Error(launcher) when it cannot be reached otherwise: it belongs to another user.
  static std::shared_ptr<SharedSegment> open(const std::string& address);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// What `open` takes, valid while this object lives.
  const std::string& address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Aligned to a cache line.
  char* data() const { return memory_ + kHead; }

 private:
  /// In front of the data: a number that no other segment has, so that a process id that means somebody else here is
  /// noticed.
  static constexpr int64_t kHead = 64;

  SharedSegment(int file, std::string address, int64_t bytes);

  int file_;
  std::string address_;
  int64_t bytes_;
  char* memory_ = nullptr;
};

}  // namespace titan
