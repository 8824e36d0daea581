// Memory of every rank of a group that all its ranks can read and write, with counters to say when: what chunked,
// overlapped communication is made of. Between processes of one host it is shared memory of the system.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace titan {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Bytes of each rank's buffer.
  virtual int64_t capacity() const = 0;

  /// A view into the buffer of rank `owner`: [rows, columns] of `type` from byte `offset` on.
  virtual at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) = 0;

  /// Adds one to the counter (from this rank, to `peer`, `channel`). What this rank wrote before is visible to whoever
  /// sees the count.
  virtual void signal(int64_t peer, int channel) = 0;
  /// Waits until the counter (from `peer`, to this rank, `channel`) has been raised `count` times in all. Throws
  /// Error(peer_failure) naming the peer when it was not within the timeout.
  virtual void wait(int64_t peer, int channel, uint64_t count) = 0;
};

inline constexpr int kPeerChannels = 4;

/// Shared memory between processes (or threads) of one host, `capacity` bytes a rank; they meet through `store` under
/// `name`. Throws Error(launcher) when the memory cannot be had or another rank does not come.
std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout);

}  // namespace titan
