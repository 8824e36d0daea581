// Named tensors that are read by box: a checkpoint, safetensors or another program's files, and block-scaled fp8
// weights dequantised as they are read.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/metadata.h"

namespace titan {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// All tensors, by name.
  virtual const std::map<std::string, LogicalTensor>& tensors() const = 0;
  /// Fills `into`, a tensor of the box's shape: any device, strides and dtype. `name` is one of `tensors`.
  virtual void read(const std::string& name, const Box& box, const at::Tensor& into) = 0;
  /// Where the tensors are, for messages.
  virtual std::string description() const = 0;
};

/// True if the key of a checkpoint belongs to state other than the model: the optimizer, the progress and so on.
bool holds_other_state(const std::string& key);

/// The model in a checkpoint, by parameter name without a prefix, independent of the release that wrote it. The
/// checkpoint must outlive it.
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

// A `torch.save` file of a dictionary of tensors.

/// Its tensors, by name. Throws DamageError or PickleError.
std::map<std::string, StoredElements> read_state_dict(CheckedReader& file);

// Non-temporal copies, for memory that is not read soon, such as the buffers of an asynchronous save.

/// memcpy on ATen's threads with non-temporal stores: the target is not read before it is overwritten (a third of the
/// traffic), and the caches keep the data of training.
void copy_streamed(void* to, const void* from, size_t bytes);

// Block-scaled float8 weights, dequantised while reading: `NAME_scale_inv` holds a factor per block. Knows no model.

/// Rows and columns of a block; blocks at a tensor's edges are smaller.
struct ScaleBlock {
  int64_t rows = 128;
  int64_t columns = 128;

  bool operator==(const ScaleBlock&) const = default;
};

/// Wraps another source. Quantised tensors, float8_e4m3fn [rows, columns], appear as float32; their factors [rows /
/// block.rows, columns / block.columns], rounded up, are hidden; all others are passed through.
class BlockScaledWeights : public TensorSource {
 public:
  /// Throws DamageError if a quantised tensor has no factors or factors of another shape.
  BlockScaledWeights(TensorSource& stored, ScaleBlock block);

  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  /// value · block factor, computed in float32. Needs extra memory of three times the box in float32.
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return stored_.description(); }

 private:
  at::Tensor factors(const std::string& name, const Box& box);

  TensorSource& stored_;
  ScaleBlock block_;
  std::map<std::string, LogicalTensor> tensors_;
};

}  // namespace titan
