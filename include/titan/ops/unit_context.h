// What a unit's operations need beside tensors and weights: one context per (unit, microbatch), alive from its forward
// to the end of its backward, handed down explicitly. Replaces every hook, global and thread-local of other designs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "titan/ops/recompute.h"

namespace titan {

enum class UnitMode {
  train,     // results are differentiated; the head writes its gradients in forward
  evaluate,  // the loss only
  logits,    // the head returns logits instead of a loss
};

/// Where weight-gradient products go: run at once, or queued for a pipeline's W action.
class WeightGradientSink {
 public:
  virtual ~WeightGradientSink() = default;
  virtual void submit(std::function<void()> product) = 0;
};

class ImmediateSink : public WeightGradientSink {
 public:
  void submit(std::function<void()> product) override { product(); }
};

/// Holds products until `run`, which executes and forgets them in order.
class QueueSink : public WeightGradientSink {
 public:
  void submit(std::function<void()> product) override { products_.push_back(std::move(product)); }
  size_t size() const { return products_.size(); }
  void run();

 private:
  std::vector<std::function<void()>> products_;
};

/// The distinct storages that operations saved for backward: "planned = counted" sums these.
class SavedLedger {
 public:
  void add(const at::Tensor& tensor);
  int64_t bytes() const;
  void clear() { storages_.clear(); }

 private:
  std::unordered_map<const void*, int64_t> storages_;
};

/// One scale slot per quantised operand of a unit: the producer's kernel writes the largest magnitude, the linear group
/// reads it. Plain precision uses none.
struct ScaleTable {
  std::vector<at::Tensor> largest_magnitude;
};

struct UnitContext {
  UnitContext(UnitMode mode, RecomputePolicy policy, WeightGradientSink& sink)
      : mode(mode), recorder(policy), sink(&sink) {}

  UnitMode mode;
  Recorder recorder;
  WeightGradientSink* sink;
  ScaleTable scales;
  SavedLedger saved;
  bool count_saved = false;

  bool replay() const { return recorder.phase() == Recorder::Phase::replay; }
  void note_saved(const at::Tensor& tensor) {
    if (count_saved && tensor.defined()) saved.add(tensor);
  }
};

}  // namespace titan
