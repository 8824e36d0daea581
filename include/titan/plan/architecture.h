// The registry of architectures: what the names and flavors of models mean, and their descriptions, without tensors.
// The tensors of each are built by the family of the same names (model/model.h). A new architecture is a file here and
// a line in architecture.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/plan/description.h"

namespace titan {

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

/// The flavor, for every model name, that has no sizes of its own: the request gives all.
inline constexpr std::string_view kCustomFlavor = "custom";

class Architecture {
 public:
  virtual ~Architecture() = default;
  /// The values of model.name that it serves.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<std::string> flavors(std::string_view name) const = 0;
  /// One of these, or kCustomFlavor.
  bool has_flavor(std::string_view name, std::string_view flavor) const;
  /// Throws Error(bad_config) for an unknown flavor or inconsistent sizes.
  virtual ModelDescription describe(const ModelRequest& request) const = 0;
  /// Notes on weights imported from another trainer: differences that the files do not show.
  virtual std::vector<std::string> notes(const ModelRequest&) const { return {}; }
};

/// All architectures; register new ones here.
std::span<const Architecture* const> architectures();
/// Null when none serves `name`.
const Architecture* find_architecture(std::string_view name);
/// By the architecture of that name, which exists.
ModelDescription describe_model(const ModelRequest& request);

}  // namespace titan
