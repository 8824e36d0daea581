// Named tensors that are in files of any kind, read box by box: what imports, exports and checks need of them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/index.h"
#include "titan/checkpoint/read_checkpoint.h"

namespace titan {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// All tensors, by name.
  virtual const std::map<std::string, LogicalTensor>& tensors() const = 0;
  /// Fills `into`, a tensor of the box's shape: any device, strides and dtype. `name` is one of `tensors`.
  virtual void read(const std::string& name, const Box& box, const at::Tensor& into) = 0;
  /// Where they lie, for people.
  virtual std::string description() const = 0;
};

/// Whether a checkpoint's tensor of that key is part of something else than the model: the optimizer, the progress, …
bool holds_other_state(const std::string& key);

/// The model in a checkpoint, under its bare names whichever generation of names wrote it. The checkpoint outlives it.
class CheckpointSource : public TensorSource {
 public:
  explicit CheckpointSource(OpenCheckpoint& checkpoint);
  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return checkpoint_.folder().string(); }

 private:
  OpenCheckpoint& checkpoint_;
  std::map<std::string, LogicalTensor> tensors_;
  std::string prefix_;
};

// A file of `torch.save` that holds a dictionary of tensors: how PyTorch programs pass weights on.

/// Hands the elements of tensor number `index` to `write`, in order, as contiguous tensors on the CPU.
using ElementPieces = std::function<void(size_t index, const std::function<void(const at::Tensor& piece)>& write)>;

void write_state_dict(HashingWriter& file, std::span<const LogicalTensor> tensors, const ElementPieces& pieces);

/// Where the tensors of such a file lie, by name. Throws DamageError or PickleError.
std::map<std::string, StoredElements> read_state_dict(CheckedReader& file);

// Copies of memory that nobody reads soon, such as those that wait to be written.

/// memcpy on ATen's threads. Stores go past the caches: memory is not read before it is overwritten, which is a third
/// of the traffic, and training finds its own data where it left them.
void copy_streamed(void* to, const void* from, size_t bytes);

}  // namespace titan
