// The registry of architectures: what the names and flavors of models mean, and their descriptions, without tensors.
// The tensors of each are built by the family of the same names (model/model.h). A new architecture is a file here and
// a line in architecture.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/schema.h"
#include "titan/plan/description.h"

namespace titan {

/// The requested model: the options, and what follows from tokenizer and data.
struct ModelRequest {
  ModelSection model = default_config().model;
  int64_t tokenizer_vocabulary = 0;  // 0: unknown
  int64_t sequence_length = 2048;    // the longest sequence of training or validation
  bool block_causal = false;         // attention stops at document boundaries, even if the flavor's does not
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
/// Returns null if no architecture serves `name`.
const Architecture* find_architecture(std::string_view name);
/// Describes the model by the architecture that `request` names, which must exist.
ModelDescription describe_model(const ModelRequest& request);

}  // namespace titan
