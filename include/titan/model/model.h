// A unit is one element of the chain that forms a language model (embedding, block, …, block, head). It maps
// HiddenStates to HiddenStates and knows no parallelism, no other units and no schedule.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/ops/attention.h"
#include "titan/ops/context_parallel.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/key_value_cache.h"
#include "titan/ops/linear.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"
#include "titan/plan/architecture.h"

namespace titan {

/// What units pass to each other: the tensors of UnitDescription::hands_on, usually one, the residual stream [tokens,
/// D]. Rows are the B·T tokens of a microbatch, row-major, or this rank's shard of them.
using HiddenStates = std::vector<at::Tensor>;

/// Inputs of one microbatch that every unit receives and that are not differentiated.
struct BatchContext {
  at::Tensor tokens;         // int64 [B, T]: this rank's positions of every sample
  at::Tensor labels;         // int64 [B, T]; kIgnoredLabel: no loss
  at::Tensor positions;      // int64 [B or 1, T]; undefined: 0 … T−1
  AttentionBounds bounds;    // of complete samples
  double loss_scale = 1.0;   // 1 / valid tokens of the whole step
  at::Tensor loss_scale_at;  // fp64 device scalar that replaces loss_scale in captured work
  // Set only in generation (UnitMode::logits):
  KeyValueCache* cache = nullptr;  // keys and values of the preceding tokens; null: none
  at::Tensor logit_rows;           // int64 [n], of the B·T tokens: compute only their logits; undefined: all
};

/// Throws InvariantError unless dtypes, shapes and devices are those stated above.
void check_batch(const BatchContext& batch);

/// Samples [first, first + count) of a microbatch, as views.
BatchContext samples_of(const BatchContext& batch, int64_t first, int64_t count);

class Unit {
 public:
  /// `weights`: all parameters that forward uses, in model order.
  Unit(std::string name, std::vector<Parameter*> weights) : name_(std::move(name)), weights_(std::move(weights)) {}
  virtual ~Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& weights() const { return weights_; }

  /// Returns what its description hands on, then its statistics: fp64 [numel], of the tokens of this rank's rows; those
  /// without a loss factor need no graph. The head hands on its loss (an fp64 scalar), or the logits in
  /// UnitMode::logits: [B, T, V], or [n, V] of BatchContext::logit_rows.
  virtual HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) = 0;

 private:
  std::string name_;
  std::vector<Parameter*> weights_;
};

// A built model: its parameters (handles without memory until a weight store allocates it) and its chain of units; and
// the interface of a model family. A new family is a folder, a line in model.cpp and a choice of model.name.

/// How the model computes: decided by the plan, the config and the device.
struct ModelStrategies {
  std::shared_ptr<const LinearProducts> products = std::make_shared<DenseProducts>();
  CrossEntropyOptions loss = {};  // scale and ranks are set in forward; its rounding is that of all products
  std::shared_ptr<const TensorParallel> tensor_parallel = nullptr;    // null: matrices are not sharded
  std::shared_ptr<const ContextParallel> context_parallel = nullptr;  // null: sequences are not sharded
  AttentionKernel attention_kernel = AttentionKernel::cudnn;          // preferred on CUDA in half precision
  std::function<void(const std::string&)> warn = {};                  // called once with each warning

  std::shared_ptr<const SequenceParallel> exchange() const {
    return tensor_parallel ? tensor_parallel->exchange : nullptr;
  }
};

class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Set by `build`, in canonical order.
  std::span<const std::unique_ptr<Parameter>> parameter_handles() const { return parameters_by_order_; }
  Parameter& parameter(std::string_view name) const;
  std::span<const std::shared_ptr<Unit>> chain() const { return chain_; }

  /// Moves non-parameter tables (rotary rows) to `device`.
  virtual void prepare(const at::Device& device) = 0;

 protected:
  Parameter& add_parameter(const ParameterSpec& spec);

  std::vector<std::unique_ptr<Parameter>> parameters_by_order_;
  std::vector<std::shared_ptr<Unit>> chain_;
};

class StateDictAdapter;

/// The tensors of an architecture (plan/architecture.h), which describes the same units without tensors.
class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  /// The values of model.name that this family serves: those of its architecture.
  virtual std::vector<std::string> names() const = 0;
  virtual std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const = 0;
  /// Its formats in other programs; null: no other program supports the model.
  virtual const StateDictAdapter* adapter() const { return nullptr; }
};

/// All families; register new ones here, and their architectures in plan/architecture.h.
std::span<const ModelFamily* const> model_families();
/// Null when no family serves `name`.
const ModelFamily* find_model_family(std::string_view name);

}  // namespace titan
