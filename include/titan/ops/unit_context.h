// What a unit's operations need beside tensors and weights: one context per (unit, microbatch), alive from its forward
// to the end of its backward, handed down explicitly. Replaces every hook, global and thread-local of other designs.
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

/// Largest amaxes that kernels found while they wrote a tensor, for products that quantise it. Where nobody wants
/// them, none are made. Copies share what they hold: a tensor may be written by one unit and quantised by the next.
class ScaleTable {
 public:
  bool wanted = false;
  /// `largest` (fp32 scalar) is max |tensor|, as long as `tensor` lives and is not written again.
  void offer(const at::Tensor& tensor, const at::Tensor& largest);
  /// That of `tensor`, or of one it is a view of all of; undefined when nobody offered one.
  at::Tensor find(const at::Tensor& tensor) const;
  /// Drops what was offered of tensors that are gone.
  void forget_gone();
  size_t size() const { return offers_->size(); }

 private:
  struct Offer {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t numel;
    at::Tensor largest;
  };
  using Offers = std::unordered_map<const void*, Offer>;
  std::shared_ptr<Offers> offers_ = std::make_shared<Offers>();
};

/// Zeros that kernels raise to the largest amaxes they find: many for one fill. A copy begins with zeros of its
/// own, so that nobody gets the same twice, and so that work that is recorded fills what it raises.
class AmaxSlots {
 public:
  AmaxSlots() = default;
  AmaxSlots(const AmaxSlots&) {}
  AmaxSlots& operator=(const AmaxSlots&) = delete;

  /// [count] of fp32 zeros where `like` is, which nobody else gets.
  at::Tensor take(int64_t count, const at::Tensor& like);

 private:
  at::Tensor zeros_;
  int64_t taken_ = 0;
};

class FusedKernels;

struct UnitContext {
  UnitContext(UnitMode mode, RecomputePolicy policy, WeightGradientSink& sink)
      : mode(mode), recorder(policy), sink(&sink) {}

  UnitMode mode;
  Recorder recorder;
  WeightGradientSink* sink;
  const FusedKernels* kernels = nullptr;       // of norms, rotary embedding, SwiGLU, embeddings; null: plain operations
  const FusedKernels* loss_kernels = nullptr;  // of the loss
  ScaleTable scales;
  AmaxSlots slots;
  SavedLedger saved;
  bool count_saved = false;

  bool replay() const { return recorder.phase() == Recorder::Phase::replay; }
  void note_saved(const at::Tensor& tensor) {
    if (count_saved && tensor.defined()) saved.add(tensor);
  }
};

}  // namespace titan
