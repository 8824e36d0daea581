// Copies activations to the host between a unit's forward and its backward: OFFLOAD, FETCH and WAIT_FETCH of programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "titan/parallel/memory_arena.h"

namespace titan {

/// Offloaded tensors: whole storages on the host, and each tensor's view of its storage, so that tensors that shared
/// memory share it again.
struct OffloadedTensors {
  struct Block {
    at::Tensor host;    // bytes
    at::Tensor device;  // undefined until fetch()
    AsyncCopy copy_back;
  };
  struct View {
    int64_t block = -1;  // -1: the tensor was undefined
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // elements
    bool requires_grad = false;
  };
  std::vector<Block> blocks;
  std::vector<View> views;
};

class ActivationOffload {
 public:
  explicit ActivationOffload(std::shared_ptr<HostOffload> offload) : offload_(std::move(offload)) {}

  /// Starts the copies to the host, one per storage, and resets the tensors. Their memory is free for what is enqueued
  /// after the next call of offload() or fetch().
  OffloadedTensors offload(const std::vector<at::Tensor*>& tensors);
  /// Starts the copies back.
  void fetch(OffloadedTensors& offloaded);
  /// Restores the tensors, in the order given to offload(); frees the host's memory.
  void wait_fetch(OffloadedTensors& offloaded, const std::vector<at::Tensor*>& tensors);

 private:
  void free_sources();

  std::shared_ptr<HostOffload> offload_;
  std::vector<AsyncCopy> copies_;  // of the last call of offload()
};

}  // namespace titan
