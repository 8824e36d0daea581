#include "state_snapshot.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <algorithm>
#include <mutex>
#include <utility>

#include "titan/checkpoint/tensor_source.h"

namespace titan {
namespace {

/// Bytes taken from the source at once: they stay in the cache until they are written.
constexpr size_t kSnapshotPiece = size_t{1} << 18;

}  // namespace

struct StateSnapshot::Part {
  at::Tensor source;             // of this save
  at::Tensor buffer;             // undefined until it is needed, then kept
  AsyncCopy to_read, to_change;  // the copy from a GPU: before the buffer is read, before the source is changed
  std::mutex mutex;              // guards the fields below, and the source while a piece is taken
  bool in_buffer = false;        // the remaining bytes are in the buffer
  size_t taken = 0;              // bytes from the source

  /// `piece`: buffer for bytes that are not kept.
  std::string_view take(size_t offset, size_t most, std::string& piece) {
    const std::lock_guard lock(mutex);
    const at::Tensor& from = in_buffer ? buffer : source;
    const std::string_view all(static_cast<const char*>(from.const_data_ptr()), from.nbytes());
    if (in_buffer) return all.substr(offset, most);
    const std::string_view wanted = all.substr(offset, std::min(most, kSnapshotPiece));
    piece = wanted;
    taken = offset + wanted.size();
    return piece;
  }

  /// Bytes not copied yet.
  size_t left() {
    const std::lock_guard lock(mutex);
    return in_buffer ? 0 : source.nbytes() - taken;
  }

  /// Copies what has not been written yet; a new buffer has the full size, so that it can be reused.
  void copy_rest() {
    const bool is_new = !buffer.defined();
    if (is_new) buffer = at::empty_like(source);
    const size_t count = is_new ? source.nbytes() : left();
    const size_t begin = source.nbytes() - count;
    copy_streamed(static_cast<char*>(buffer.mutable_data_ptr()) + begin,
                  static_cast<const char*>(source.const_data_ptr()) + begin, count);
    const std::lock_guard lock(mutex);
    in_buffer = true;
  }
};

StateSnapshot::StateSnapshot(bool beside) : beside_(beside), pinned_(std::make_shared<PinnedMemory>()) {}
StateSnapshot::~StateSnapshot() = default;

void StateSnapshot::begin(const CheckpointState& state, std::span<const PlannedWrite> writes) {
  while (parts_.size() < writes.size()) parts_.push_back(std::make_unique<Part>());
  over_ = false;
  attached_ = true;
  for (size_t i = 0; i < writes.size(); ++i) {
    Part& part = *parts_[i];
    part.source = local_part(state.tensors[writes[i].tensor], writes[i]);
    part.taken = 0;
    part.in_buffer = !part.source.is_cpu() || !part.source.is_contiguous();
    if (part.in_buffer) copy_at_once(part);
  }
}

void StateSnapshot::copy_at_once(Part& part) {
  const bool beside = beside_ && !part.source.is_cpu();
  const at::IntArrayRef sizes = part.source.sizes();
  const at::ScalarType type = part.source.scalar_type();
  if (!part.buffer.defined()) {
    part.buffer =
        beside ? pinned_->allocate(part.source.numel(), type).view(sizes) : at::empty(sizes, at::TensorOptions(type));
  }
  if (!beside) {
    part.buffer.copy_(part.source);
    return;
  }
  part.to_read = part.to_change = copy_async(part.buffer, part.source, copies_);
}

void StateSnapshot::detach() {
  if (!std::exchange(attached_, false)) return;
  bool is_needed = false;
  for (const std::unique_ptr<Part>& part : parts_) {
    part->to_change.block_stream();
    is_needed |= !over_ && part->left() > 0;
  }
  if (!is_needed) return;
  for (const std::unique_ptr<Part>& part : parts_) {
    if (!part->in_buffer) part->copy_rest();
  }
}

TensorBytes StateSnapshot::read(size_t index) {
  Part& part = *parts_[index];
  part.to_read.synchronize();
  const auto piece = std::make_shared<std::string>();
  return {part.source.scalar_type(), part.source.sizes().vec(),
          [&part, piece](size_t offset, size_t most) { return part.take(offset, most, *piece); }};
}

}  // namespace titan
