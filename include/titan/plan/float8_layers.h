// Which linear layers of a model use float8, and why the others do not: a pure function of the model's description.
// Used by the plan; a run prints it at start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/plan/description.h"
#include "titan/plan/precision.h"

namespace titan {

/// The float8 options of the config.
struct Float8Request {
  Float8Recipe recipe = Float8Recipe::tensorwise;
  bool emulate = false;                   // fp32 products of operands rounded to float8
  bool gathers = false;                   // all-gather sharded weights in float8
  bool casts_again = false;               // cast weights again in backward instead of keeping forward's copy
  bool precomputes = false;               // compute all weight scales in one reduction after the optimizer step
  std::vector<std::string> filters = {};  // layers whose name contains one of these stay in the compute dtype
  bool leaves_small = false;              // exclude layers that are too small to be faster
};

struct LinearChoice {
  std::string layer;  // "layers.0.attention.wq": the parameter's name without ".weight"
  int64_t outputs = 0;
  int64_t inputs = 0;
  bool converted = false;
  std::string reason;  // why the layer is not converted
};

/// Every linear layer of the model, in order. Tensor-parallel shards must also be multiples of 16 in both dimensions.
/// Layers of units in `keep_fp32` stay fp32.
std::vector<LinearChoice> choose_float8_layers(const ModelDescription& model, const Float8Request& request,
                                               int64_t tensor_ranks, const std::vector<std::string>& keep_fp32);

/// The entries of `filters` that match no linear layer.
std::vector<std::string> idle_filters(const ModelDescription& model, const std::vector<std::string>& filters);

bool converts_any(const std::vector<LinearChoice>& choices);

/// If no layer is converted: a message with the number of layers per reason and what to do.
std::optional<std::string> idle_float8_words(const Float8Request& request, const std::vector<LinearChoice>& choices);

/// The report at start: converted and unconverted layers, equal ones merged into one line.
std::vector<std::string> float8_lines(const Float8Request& request, const std::vector<LinearChoice>& choices);

}  // namespace titan
