// A unit: one link of the chain that a language model is (embedding, block, …, block, head). It maps a Stream to a
// Stream and knows nothing of parallelism, of other units, or of when it is run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "titan/ops/attention.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// What flows between units: a short list of tensors, usually the one residual stream [tokens, D],
/// the B·T tokens of a microbatch row-major or this rank's share of them.
using Stream = std::vector<at::Tensor>;

/// The facts of one microbatch, handed to every unit and not differentiated.
struct BatchContext {
  at::Tensor tokens;         // int64 [B, T]: this rank's places of every sample
  at::Tensor labels;         // int64 [B, T], kIgnoredLabel where nothing is predicted
  at::Tensor positions;      // int64 [B or 1, T]; undefined: 0 … T−1
  AttentionBounds bounds;    // of the whole samples
  double loss_scale = 1.0;   // 1 / valid tokens of the whole step
  at::Tensor loss_scale_at;  // fp64 scalar on the device, in place of it where recorded work reads the scale
};

/// Samples [first, first + count) of a microbatch, as views.
BatchContext samples_of(const BatchContext& batch, int64_t first, int64_t count);

class Unit {
 public:
  /// `weights`: those that its forward uses, in their order in the model.
  Unit(std::string name, std::vector<Parameter*> weights) : name_(std::move(name)), weights_(std::move(weights)) {}
  virtual ~Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& weights() const { return weights_; }

  /// The head's output stream is its loss (an fp64 scalar), or the logits [B, T, V] in UnitMode::logits.
  virtual Stream forward(const Stream& input, const BatchContext& batch, UnitContext& context) = 0;

 private:
  std::string name_;
  std::vector<Parameter*> weights_;
};

}  // namespace titan
