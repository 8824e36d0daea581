// Memory of every rank of a communicator that all its ranks can read and write, with signals for synchronisation: the
// basis of chunked, overlapped communication. Between CPU ranks of one host it is shared memory; between GPUs of one
// host it is device memory mapped by the peers (Cuda::peer_memory).
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

  /// A view into the buffer of rank `owner`: `shape` of `type`, starting at byte `offset`.
  virtual at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) = 0;

  /// Increments the count of (this rank, `peer`, `channel`). What this rank wrote before is visible to a rank that sees
  /// the count. Every signal must be waited for once, before the next one is sent.
  virtual void signal(int64_t peer, int channel) = 0;
  /// Waits until (`peer`, this rank, `channel`) was signalled `count` times in total. Calls use the counts 1, 2, 3, ….
  /// On the CPU, throws Error(peer_failure) naming the peer at the timeout.
  virtual void wait(int64_t peer, int channel, uint64_t count) = 0;

  /// For waits that begin after this call.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Runs `transfer` concurrently with what the caller does next: on a separate thread, or on a separate stream after
  /// the caller's enqueued work. `transfer` may call all functions above; the caller must have created the tensors that
  /// it writes.
  virtual Pending beside(std::function<void()> transfer) = 0;
};

/// Two banks of a buffer, one read while the other is filled, and for each a signal that it is full and one that it is
/// read (ops/sequence_parallel.cpp).
inline constexpr int kPeerChannels = 4;

/// Shared memory between processes (or threads) of one host, `capacity` bytes per rank; they find each other through
/// `store` under `name`. Throws Error(launcher) when the memory cannot be allocated or another rank does not come.
std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout);

/// For a dry run of one rank of `size`: every rank's buffer is its own, and nothing waits.
std::unique_ptr<PeerMemory> make_fake_peer_memory(int64_t rank, int64_t size, int64_t capacity,
                                                  const at::Device& device);

// Memory that processes of one host share. It has no name in any file system: a process that knows its address opens it
// through its owner's file descriptor. Nothing is left behind however a run ends, and no limit of /dev/shm applies.

class SharedSegment {
 public:
  /// Allocates `bytes` of zeros at once: a lack of memory throws Error(launcher) here instead of raising a signal at
  /// the first access.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);
  /// Opens the segment at another process's `address`. Throws Error(peer_failure) when the owner is not visible: it has
  /// exited, or is in another container; Error(launcher) when it is not accessible: it belongs to another user.
  static std::shared_ptr<SharedSegment> open(const std::string& address);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// The argument for `open`, valid while this object lives.
  const std::string& address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Aligned to a cache line.
  char* data() const { return memory_ + kHead; }

 private:
  /// Header in front of the data: a number unique to the segment, to detect a process id that belongs to another
  /// process here.
  static constexpr int64_t kHead = 64;

  SharedSegment(int file, std::string address, int64_t bytes);

  int file_;
  std::string address_;
  int64_t bytes_;
  char* memory_ = nullptr;
};

}  // namespace titan
