// A unit is one element of the chain that forms a language model (embedding, block, …, block, head). It maps
// HiddenStates to HiddenStates and knows no parallelism, no other units and no schedule.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/model/description.h"
#include "titan/ops/attention.h"
#include "titan/ops/context_parallel.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/key_value_cache.h"
#include "titan/ops/linear.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// What units pass to each other: usually one tensor, the residual stream [tokens, D]: the B·T tokens of a microbatch,
/// row-major, or this rank's shard of them.
using HiddenStates = std::vector<at::Tensor>;

/// Inputs of one microbatch that every unit receives and that are not differentiated.
struct BatchContext {
  at::Tensor tokens;         // int64 [B, T]: this rank's positions of every sample
  at::Tensor labels;         // int64 [B, T]; kIgnoredLabel: no loss
  at::Tensor positions;      // int64 [B or 1, T]; undefined: 0 … T−1
  AttentionBounds bounds;    // of complete samples
  double loss_scale = 1.0;   // 1 / valid tokens of the whole step
  at::Tensor loss_scale_at;  // fp64 device scalar that replaces loss_scale in captured work
  // Only for generation (UnitMode::logits):
  KeyValueCache* cache = nullptr;  // keys and values of the preceding tokens; null: none
  at::Tensor logit_rows;           // int64 [n], of the B·T tokens: compute only their logits; undefined: all
};

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

  /// The head returns its loss (an fp64 scalar), or the logits in UnitMode::logits: [B, T, V], or [n, V] of
  /// BatchContext::logit_rows.
  virtual HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) = 0;

 private:
  std::string name_;
  std::vector<Parameter*> weights_;
};

// A built model: its parameters (handles without memory until a weight store allocates it) and its chain of units; and
// the interface of a model family. A new family is a folder, a line in model.cpp and a choice of model.name.

/// The requested model, resolved from the config and the tokenizer.
struct ModelRequest {
  std::string name;
  std::string flavor;
  std::string norm_type = "rmsnorm";
  std::string rope_scaling = "default";
  int64_t tokenizer_vocabulary = 0;  // 0: unknown
  int64_t sequence_length = 2048;
  int64_t max_sequence = 0;   // 0: the family's default
  bool block_causal = false;  // attention stops at document boundaries, even if the flavor's does not
  /// Override the flavor's sizes; 0 keeps the flavor's; 0 in `rope` keeps that of `rope_scaling`.
  struct Sizes {
    int64_t dim = 0;
    int64_t n_layers = 0;
    int64_t n_heads = 0;
    int64_t n_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t hidden_dim = 0;
    int64_t multiple_of = 0;
    int64_t vocab_size = 0;
    double norm_eps = 0;
    std::string embeddings = "default";  // or tied, untied
    double rope_theta = 0;
  } sizes;
  struct Rope {
    double factor = 0;
    double low_freq_factor = 0, high_freq_factor = 0;
    int64_t original_context = 0;
    double beta_fast = 0, beta_slow = 0;
    double attention_factor = 0;
  } rope;
};

/// How the model computes: decided by the plan, the config and the device.
struct ModelStrategies {
  std::shared_ptr<const LinearProducts> products = std::make_shared<DenseProducts>();
  int64_t loss_chunks = 8;
  bool round_weight_gradient = false;
  std::shared_ptr<const TensorParallel> tensor_parallel = nullptr;    // null: matrices are not sharded
  std::shared_ptr<const ContextParallel> context_parallel = nullptr;  // null: sequences are not sharded
  AttentionKernel attention_kernel = AttentionKernel::cudnn;          // preferred on CUDA in half precision
  std::function<void(const std::string&)> warn = {};                  // called once with each warning

  std::shared_ptr<const SequenceParallel> exchange() const {
    return tensor_parallel ? tensor_parallel->exchange : nullptr;
  }
};

/// The config's recompute selection.
struct RecomputeSelection {
  enum class Mode { none, full, selective_layers, selective_operations, selective_parts };
  Mode mode = Mode::none;
  int64_t every = 1;               // selective_layers: every n-th block
  std::vector<std::string> parts;  // selective_parts: norm, swiglu, ffn, qkv, attention
};

class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Set by `build`, in canonical order (that of module_tree's named_parameters()).
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

/// The flavor, for every model name, that has no sizes of its own: the request gives all.
inline constexpr std::string_view kCustomFlavor = "custom";

class StateDictAdapter;

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  /// The values of model.name that this family serves.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<std::string> flavors(std::string_view name) const = 0;
  /// One of these, or kCustomFlavor.
  bool has_flavor(std::string_view name, std::string_view flavor) const;
  /// Throws Error(bad_config) for an unknown flavor or inconsistent sizes.
  virtual ModelDescription describe(const ModelRequest& request) const = 0;
  virtual std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const = 0;
  /// The policy of block `block` (0-based) under `selection` with `tensor_ranks` tensor-parallel ranks: saving a
  /// communicated result may pay off even if its product alone does not.
  virtual RecomputePolicy policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks) const = 0;
  /// Its formats in other programs; null: no other program supports the model.
  virtual const StateDictAdapter* adapter() const { return nullptr; }
  /// Notes on weights imported from another trainer: differences that the files do not show.
  virtual std::vector<std::string> notes(const ModelRequest& request) const = 0;
};

/// All families; register new ones here.
std::span<const ModelFamily* const> model_families();
/// Null when no family serves `name`.
const ModelFamily* find_model_family(std::string_view name);

// The model as a LibTorch module tree that can be walked and printed.

/// named_parameters() are the model's parameters in order: the masters (this rank's shards) if allocated, otherwise
/// meta tensors of the parameter's shape.
std::shared_ptr<torch::nn::Module> module_tree(const Model& model);

}  // namespace titan
