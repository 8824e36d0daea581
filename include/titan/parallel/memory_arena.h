// An account of memory: what is allocated through it, how much of it lives now and at most. Under CPU offload the host
// and the device have one each, and everything that crosses between them goes through one counted link; on a machine
// without a GPU both lie in the same memory and the accounts still hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace titan {

class MemoryArena {
 public:
  explicit MemoryArena(at::Device device) : device_(device) {}

  const at::Device& device() const { return device_; }
  /// Uninitialised, flat, freed as any tensor. On the host of a machine with a GPU: pinned when `pinned`.
  at::Tensor allocate(int64_t numel, at::ScalarType type, bool pinned = false);

  /// Bytes of the tensors that live now, and the most there were after any allocation.
  int64_t held_bytes();
  int64_t peak_bytes() const { return peak_; }

 private:
  at::Device device_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  int64_t peak_ = 0;
};

/// Where shards live and where units run, and what crosses between the two. One arena for both: nothing crosses.
class HostLink {
 public:
  HostLink(std::shared_ptr<MemoryArena> home, std::shared_ptr<MemoryArena> device)
      : home_(std::move(home)), device_(std::move(device)) {}

  MemoryArena& home() { return *home_; }
  MemoryArena& device() { return *device_; }
  bool crosses() const { return home_ != device_; }

  void to_device(const at::Tensor& target, const at::Tensor& source);
  void to_home(const at::Tensor& target, const at::Tensor& source);
  /// Bytes since the last reset.
  int64_t to_device_bytes() const { return to_device_bytes_; }
  int64_t to_home_bytes() const { return to_home_bytes_; }
  void reset() { to_device_bytes_ = to_home_bytes_ = 0; }

 private:
  std::shared_ptr<MemoryArena> home_;
  std::shared_ptr<MemoryArena> device_;
  int64_t to_device_bytes_ = 0;
  int64_t to_home_bytes_ = 0;
};

}  // namespace titan
