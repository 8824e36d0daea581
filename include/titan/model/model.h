// A built model: its parameters (handles, without memory until a weight store gives them some) and its chain of units;
// and what a model family must offer so that a new one is a folder and a line in registry.cpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/model/description.h"
#include "titan/model/unit.h"
#include "titan/ops/context_parallel.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/linear.h"

namespace titan {

/// What the user asks for, resolved from the config and the tokenizer.
struct ModelRequest {
  std::string name;
  std::string flavor;
  std::string norm_type = "rmsnorm";
  std::string rope_scaling = "default";
  int64_t tokenizer_vocabulary = 0;  // 0: unknown
  int64_t sequence_length = 2048;
  int64_t max_sequence = 0;  // 0: the family's
  /// Sizes given in the config instead of the flavor's; 0 keeps the flavor's.
  struct Sizes {
    int64_t dim = 0;
    int64_t n_layers = 0;
    int64_t n_heads = 0;
    int64_t n_kv_heads = 0;
    int64_t multiple_of = 0;
    int64_t vocab_size = 0;
  } sizes;
};

/// The parallel and precision choices that the plan makes for the model.
struct ModelStrategies {
  std::shared_ptr<const LinearProducts> products = std::make_shared<DenseProducts>();
  int64_t loss_chunks = 8;
  bool round_weight_gradient = false;
  std::shared_ptr<const TensorParallel> tensor_parallel = nullptr;    // null: matrices are whole
  std::shared_ptr<const ContextParallel> context_parallel = nullptr;  // null: sequences are whole
  AttentionKernel attention_kernel = AttentionKernel::cudnn;          // preferred on CUDA in half precision
  std::function<void(const std::string&)> tell = {};                  // what a run should say once

  std::shared_ptr<const TokenExchange> exchange() const {
    return tensor_parallel ? tensor_parallel->exchange : nullptr;
  }
};

/// The recompute selection of the config, in the model's terms.
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

  /// Allocated by `build`, in the canonical order (that of module_tree's named_parameters()).
  std::span<const std::unique_ptr<Parameter>> parameter_handles() const { return parameters_by_order_; }
  Parameter& parameter(std::string_view name) const;
  std::span<const std::shared_ptr<Unit>> chain() const { return chain_; }

  /// Moves tables that are not parameters (rotary rows) to `device`.
  virtual void prepare(const at::Device& device) = 0;

 protected:
  Parameter& add_parameter(const ParameterSpec& spec);

  std::vector<std::unique_ptr<Parameter>> parameters_by_order_;
  std::vector<std::shared_ptr<Unit>> chain_;
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  /// Values of model.name that this family serves.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<std::string> flavors(std::string_view name) const = 0;
  /// Throws Error(bad_config) for an unknown flavor or sizes that do not fit together.
  virtual ModelDescription describe(const ModelRequest& request) const = 0;
  virtual std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const = 0;
  /// The policy of block `block` (0-based) under `selection`, when `tensor_ranks` ranks share every matrix: what
  /// crossed between them may be worth keeping where the product itself would not be.
  virtual RecomputePolicy policy(const RecomputeSelection& selection, int64_t block, int64_t tensor_ranks) const = 0;
  /// What to know of weights that come from another trainer and show it nowhere: choices that it made differently.
  virtual std::vector<std::string> notes(const ModelRequest& request) const = 0;
};

/// All families; the place to add one.
std::span<const ModelFamily* const> model_families();
/// Null when no family serves `name`.
const ModelFamily* find_model_family(std::string_view name);

}  // namespace titan
