// What a unit's operations need besides tensors and weights: one context per (unit, microbatch), alive from its forward
// to the end of its backward and passed explicitly, instead of hooks, globals or thread-locals.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "titan/ops/recompute.h"

namespace titan {

enum class UnitMode {
  train,     // differentiated; the head writes its gradients in forward
  evaluate,  // the loss only
  logits,    // the head returns logits instead of a loss
};

/// Where weight-gradient products run: at once, or queued for a pipeline's W action.
class WeightGradientSink {
 public:
  virtual ~WeightGradientSink() = default;
  virtual void submit(std::function<void()> product) = 0;
};

class ImmediateSink : public WeightGradientSink {
 public:
  void submit(std::function<void()> product) override { product(); }
};

/// Queues products until `run`, which executes them in order and clears the queue.
class QueueSink : public WeightGradientSink {
 public:
  void submit(std::function<void()> product) override { products_.push_back(std::move(product)); }
  size_t size() const { return products_.size(); }
  void run();

 private:
  std::vector<std::function<void()>> products_;
};

/// The distinct storages that operations saved for backward; the planned memory must equal their sum.
class SavedLedger {
 public:
  void add(const at::Tensor& tensor);  // of any shape
  int64_t bytes() const;
  void clear() { storages_.clear(); }

 private:
  std::unordered_map<const void*, int64_t> storages_;
};

/// amaxes that kernels computed while writing a tensor, for products that quantise it; none are computed if no product
/// needs them. Copies share state: one unit may write a tensor and the next quantise it.
class ScaleTable {
 public:
  bool wanted = false;
  /// Registers `largest` (fp32 scalar), max |x| of `tensor` (any shape), valid while that lives and is not overwritten.
  void offer(const at::Tensor& tensor, const at::Tensor& largest);
  /// The amax (scalar) of `tensor` (any shape), or of a tensor that it is a full view of; undefined if none is known.
  at::Tensor find(const at::Tensor& tensor) const;
  /// Removes entries of freed tensors.
  void forget_gone();
  size_t size() const { return offers_->size(); }

 private:
  struct Offer {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t numel;
    at::Tensor largest;  // fp32 scalar
  };
  using Offers = std::unordered_map<const void*, Offer>;
  std::shared_ptr<Offers> offers_ = std::make_shared<Offers>();
};

/// A pool of zeroed amax slots; one memset clears many. A copy starts with zeros of its own: slots are never shared,
/// and a captured graph clears the slots that it writes.
class AmaxSlots {
 public:
  AmaxSlots() = default;
  AmaxSlots(const AmaxSlots&) {}
  AmaxSlots& operator=(const AmaxSlots&) = delete;

  /// [count] fp32 zeros on the device of `like` (any shape), exclusive to the caller.
  at::Tensor take(int64_t count, const at::Tensor& like);

 private:
  at::Tensor zeros_;  // fp32 [slots]
  int64_t taken_ = 0;
};

class FusedKernels;

struct UnitContext {
  UnitContext(UnitMode mode, RecomputePolicy policy, WeightGradientSink& sink)
      : mode(mode), recorder(policy), sink(&sink) {}

  UnitMode mode;
  Recorder recorder;
  WeightGradientSink* sink;
  const FusedKernels* kernels = nullptr;       // for norms, rotary embedding, SwiGLU, embeddings; null: ATen
  const FusedKernels* loss_kernels = nullptr;  // for the loss
  ScaleTable scales;
  AmaxSlots slots;
  SavedLedger saved;
  bool count_saved = false;

  bool replay() const { return recorder.phase() == Recorder::Phase::replay; }
  void note_saved(const at::Tensor& tensor) {  // of any shape
    if (count_saved && tensor.defined()) saved.add(tensor);
  }
};

}  // namespace titan
