// An account of memory: what is allocated through it, how much of it lives now and at most. Under CPU offload the host
// and the device have one each, and everything that crosses between them goes through one counted link; on a machine
// without a GPU both lie in the same memory and the accounts still hold.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "titan/parallel/pinned_memory.h"

namespace titan {

class MemoryArena {
 public:
  explicit MemoryArena(at::Device device, PinnedMemory::Source pinned = PinnedMemory::cuda())
      : device_(device), pinned_(std::make_shared<PinnedMemory>(pinned)) {}

  const at::Device& device() const { return device_; }
  /// Uninitialised, flat, freed as any tensor. `pinned`: of the host, on a machine with a GPU.
  at::Tensor allocate(int64_t numel, at::ScalarType type, bool pinned = false);

  /// Bytes of the tensors that live now, and the most there were after any allocation.
  int64_t held_bytes() const { return *held_; }
  int64_t peak_bytes() const { return peak_; }

 private:
  at::Device device_;
  std::shared_ptr<PinnedMemory> pinned_;
  std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
  int64_t peak_ = 0;
};

/// A copy under way between the host and the device, beside the device's other work. Both ends live until it is over.
class Crossing {
 public:
  Crossing() = default;
  Crossing(at::Tensor target, at::Tensor source, std::shared_ptr<c10::Event> done)
      : target_(std::move(target)), source_(std::move(source)), done_(std::move(done)) {}

  /// What the device's current stream does from here on comes after the copy; lets go of both ends.
  void order();
  /// The host waits for the copy, ordered or not; lets go of both ends.
  void wait();

 private:
  at::Tensor target_, source_;
  std::shared_ptr<c10::Event> done_;  // null on a CPU: the copy is over when it has begun, but both ends live as long
};

/// Begins to copy between the host and a device, behind what the device's current stream has to do by now, on a stream
/// beside it: `copies`, which the first call makes. `then` enqueues on that stream what belongs to the copy. Between
/// tensors on the CPU the copy is over when this returns.
Crossing copy_beside(const at::Tensor& target, const at::Tensor& source, std::optional<c10::Stream>& copies,
                     const std::function<void()>& then = {});

/// Where shards live and where units run, and what crosses between the two. One arena for both: nothing crosses.
class HostLink {
 public:
  HostLink(std::shared_ptr<MemoryArena> home, std::shared_ptr<MemoryArena> device)
      : home_(std::move(home)), device_(std::move(device)) {}

  MemoryArena& home() { return *home_; }
  MemoryArena& device() { return *device_; }
  bool crosses() const { return home_ != device_; }

  /// On streams of the link's own, one each way, behind what the device's current stream has to do by now; the host
  /// does not wait where the home's memory is pinned. A copy that reads what one the other way writes has to begin
  /// after that one's order(). What `then` enqueues comes behind the copy on its stream, and belongs to it.
  Crossing start_to_device(const at::Tensor& target, const at::Tensor& source, const std::function<void()>& then = {});
  Crossing start_to_home(const at::Tensor& target, const at::Tensor& source);
  /// The host waits, once, for all copies home that were started, and for those of `numbers` [at least one], which
  /// follow them and are not counted: what it returns. On a CPU those are the numbers themselves.
  std::vector<at::Tensor> wait_home(const std::vector<at::Tensor>& numbers);
  /// Whether memory of the home is best pinned.
  bool pins() const { return crosses() && !device_->device().is_cpu(); }
  /// Bytes since the last reset.
  int64_t to_device_bytes() const { return to_device_bytes_; }
  int64_t to_home_bytes() const { return to_home_bytes_; }
  void reset() { to_device_bytes_ = to_home_bytes_ = 0; }

 private:
  std::optional<c10::Stream> copies_to_device_, copies_to_home_;  // made with the first copy
  std::shared_ptr<MemoryArena> home_;
  std::shared_ptr<MemoryArena> device_;
  int64_t to_device_bytes_ = 0;
  int64_t to_home_bytes_ = 0;
};

}  // namespace titan
