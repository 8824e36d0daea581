// Activations on the host between a unit's forward and its backward. Knows tensors and the link they cross; which
// unit's, and when, the executor says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "titan/parallel/memory_arena.h"

namespace titan {

/// Tensors that were put away: whole storages on the host, and how the tensors lay in them, so that what shared memory
/// shares it again.
struct PutAway {
  struct Block {
    at::Tensor host;    // bytes
    at::Tensor device;  // undefined until they begin to come back
    Crossing back;
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
  explicit ActivationOffload(std::shared_ptr<HostLink> link) : link_(std::move(link)) {}

  /// Copies what the tensors hold to the host and takes the tensors away; each storage crosses once. The
  /// memory is free for what is enqueued after the next call, be it start_back.
  PutAway put_away(const std::vector<at::Tensor*>& tensors);
  /// Storages begin to come back; bring_back will find them on their way.
  void start_back(PutAway& away);
  /// Puts the tensors back, in the order they were given to put_away, once start_back was called; forgets the copies on
  /// the host.
  void bring_back(PutAway& away, const std::vector<at::Tensor*>& tensors);

 private:
  void let_go();

  std::shared_ptr<HostLink> link_;
  std::vector<Crossing> leaving_;  // of the last call of put_away
};

}  // namespace titan
