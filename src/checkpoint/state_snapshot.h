// The tensors of an asynchronous save, as they were when it began. The writer threads read them from the state itself
// until the training thread is about to change it; what is not written by then is copied.
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
  /// `beside`: copies from a GPU run asynchronously on a separate stream into pinned memory; otherwise `begin` blocks
  /// until they are done.
  explicit StateSnapshot(bool beside);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  /// Called by the training thread: `read` now returns the tensors of `writes` of `state`, the same tensors in every
  /// save. No thread may still read the previous snapshot.
  void begin(const CheckpointState& state, std::span<const PlannedWrite> writes);
  /// Called by the training thread: after it returns, the tensors may change, by the CPU and by work enqueued on the
  /// device's current stream. Buffers are allocated for the tensors that need one, and kept.
  void detach();
  /// Called by writer threads: the bytes of write `index`, valid until the next `begin`.
  TensorBytes read(size_t index);
  /// Called by writer threads: the snapshot is no longer read.
  void end() { over_ = true; }

 private:
  struct Part;
  void copy_at_once(Part& part);

  bool beside_;
  bool attached_ = false;  // the tensors may not change
  std::atomic<bool> over_ = true;
  std::vector<std::unique_ptr<Part>> parts_;  // by write
  std::shared_ptr<PinnedMemory> pinned_;
  std::optional<c10::Stream> copies_;  // created with the first asynchronous copy
};

}  // namespace titan
