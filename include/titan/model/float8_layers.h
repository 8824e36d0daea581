// Which linear layers of a model compute in float8, and why the others do not: a pure function of the model's
// description. The plan follows it, the start of a run prints it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/model/description.h"
#include "titan/ops/float8.h"

namespace titan {

/// What the config asks for.
struct Float8Request {
  Float8Recipe recipe = Float8Recipe::tensorwise;
  bool emulate = false;                   // products of the compute dtype over operands that were rounded to float8
  bool gathers = false;                   // sharded weights travel as float8
  bool casts_again = false;               // weights in backward, too, rather than to keep what forward cast
  bool precomputes = false;               // and their scales are found in one reduction after the optimizer's step
  std::vector<std::string> filters = {};  // layers whose name contains one of these stay as they are
  bool leaves_small = false;              // so do those too small to gain
};

struct LinearChoice {
  std::string layer;  // "layers.0.attention.wq": the parameter's name without ".weight"
  int64_t outputs = 0;
  int64_t inputs = 0;
  bool converted = false;
  std::string reason;  // why not
};

/// torchtitan's name of a recipe, and back.
std::string_view name(Float8Recipe recipe);
Float8Recipe float8_recipe(std::string_view name);

/// Every linear layer of the model, in its order. Ranks that share every matrix hold parts of it, which must be
/// multiples of 16 both ways, too. Layers of the units in `keep_fp32` stay in fp32.
std::vector<LinearChoice> choose_float8_layers(const ModelDescription& model, const Float8Request& request,
                                               int64_t tensor_ranks, const std::vector<std::string>& keep_fp32);

/// The words of `filters` that no linear layer's name contains.
std::vector<std::string> idle_filters(const ModelDescription& model, const std::vector<std::string>& filters);

bool converts_any(const std::vector<LinearChoice>& choices);

/// Where every layer is left out: that float8 is on for nothing, how many layers there are of each reason, and what to
/// do.
std::optional<std::string> idle_float8_words(const Float8Request& request, const std::vector<LinearChoice>& choices);

/// What a start says: what was converted and what was left, layers that are alike on one line.
std::vector<std::string> float8_lines(const Float8Request& request, const std::vector<LinearChoice>& choices);

}  // namespace titan
