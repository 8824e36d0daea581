// The state that a save writes beside training, as it was when the save began. A tensor on the CPU is written from
// where it lies for as long as nobody changes it, and only what is not written by then is copied; what lies on a GPU is
// copied at once. Where a training step takes longer than a write, nothing on the CPU is ever copied and no buffer
// made.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "titan/checkpoint/save.h"
#include "titan/parallel/host_offload.h"

namespace titan {

class StateSnapshot {
 public:
  /// `beside`: copies from a GPU run beside its other work, into pinned memory; else `begin` returns when they are
  /// made.
  explicit StateSnapshot(bool beside);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  /// The thread that trains: from now on `read` gives the tensors of these writes of `state`, the same tensors in every
  /// call. Nobody reads what was there before.
  void begin(const CheckpointState& state, std::span<const PlannedWrite> writes);
  /// The thread that trains: once this returns it may change the tensors, and a device's current stream may with what
  /// it is given from then on.
  void detach();
  /// The threads that write: write `index`, for one of them. Lasts until the next `begin`.
  TensorBytes read(size_t index);
  /// The threads that write: nothing will be read any more.
  void end() { over_ = true; }

  /// Of the buffers made so far, which stay: either none, or those of everything that must lie in one.
  int64_t buffer_bytes() const;
  size_t buffers() const;

 private:
  struct Part;
  void copy_at_once(Part& part);

  bool beside_;
  bool attached_ = false;  // the tensors may not change
  std::atomic<bool> over_ = true;
  std::vector<std::unique_ptr<Part>> parts_;  // by write
  std::shared_ptr<PinnedMemory> pinned_;
  std::optional<c10::Stream> copies_;  // made with the first copy beside other work
};

}  // namespace titan
