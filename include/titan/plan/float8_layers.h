// Which linear layers of a model use float8, and why the others do not: a pure function of the model's description.
// Used by the plan; a run prints it at start.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/plan/description.h"
#include "titan/plan/precision.h"

namespace titan {

/// The entry of quantize.linear.float8.filter_fqns that excludes layers too small to be faster; the others exclude
/// layers whose name contains them.
inline constexpr std::string_view kSmallLayersFilter = "auto_filter_small_kn";
std::vector<std::string> name_filters(const LinearFloat8Section& section);

inline Float8Recipe recipe_of(const LinearFloat8Section& section) {
  return section.recipe_name.value_or(Float8Recipe::tensorwise);
}

struct LinearChoice {
  std::string layer;  // "layers.0.attention.wq": the parameter's name without ".weight"
  int64_t outputs = 0;
  int64_t inputs = 0;
  bool converted = false;
  std::string reason;  // why the layer is not converted
};

/// Every linear layer of the model, in order. Tensor-parallel shards must also be multiples of 16 in both dimensions.
/// Layers of units in `keep_fp32` stay fp32.
std::vector<LinearChoice> choose_float8_layers(const ModelDescription& model, const LinearFloat8Section& section,
                                               int64_t tensor_ranks, const std::vector<std::string>& keep_fp32);

/// The entries of `filters` that match no linear layer.
std::vector<std::string> idle_filters(const ModelDescription& model, const std::vector<std::string>& filters);

bool converts_any(const std::vector<LinearChoice>& choices);

/// If no layer is converted: a message with the number of layers per reason and what to do.
std::optional<std::string> idle_float8_words(const LinearFloat8Section& section,
                                             const std::vector<LinearChoice>& choices);

/// The report at start: converted and unconverted layers, equal ones merged into one line.
std::vector<std::string> float8_lines(const LinearFloat8Section& section, const std::vector<LinearChoice>& choices);

}  // namespace titan
