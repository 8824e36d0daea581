// A family for tests whose blocks have weights that are split over a data axis for good, as experts on an axis of their
// own would be: Llama's blocks, each behind a layer whose hidden features are spread over the ranks of dp_shard. Each
// rank multiplies the tokens of all these ranks by its part of the weights. Written plainly.
//   x = h + down·tanh(up·h);  h' = block(x)      up [F, D], down [D, F]
#pragma once

#include <string>
#include <utility>

#include "titan/plan/description.h"
#include "titan/plan/device_mesh.h"
#include "titan/plan/unit_trace.h"

namespace titan {

inline constexpr int64_t kExpertFeatures = 48;

inline std::string up_of(const std::string& block) { return block + ".experts.up"; }
inline std::string down_of(const std::string& block) { return block + ".experts.down"; }

/// `ranks`: of dp_shard.
inline void add_experts(ModelDescription& model, int64_t ranks) {
  const int64_t width = model.dim;
  for (UnitDescription& unit : model.units) {
    if (unit.role != UnitRole::block) continue;
    const size_t group = unit.groups.size();
    const Initialiser small{Initialiser::Kind::normal, 0.05};
    unit.groups.push_back({"experts"});
    unit.parameters.push_back(
        {up_of(unit.name), {kExpertFeatures, width}, small, true, {{MeshAxis::dp_shard, 0}}, group});
    unit.parameters.push_back(
        {down_of(unit.name), {width, kExpertFeatures}, small, true, {{MeshAxis::dp_shard, 1}}, group});
    unit.trace = [plain = unit.trace, width, ranks](UnitTrace& trace) {
      plain(trace);
      if (ranks == 1) return;
      const TraceShape& shape = trace.shape();
      const int64_t bytes = ranks * shape.tokens() / shape.tensor_ranks * width * shape.element_size;
      // Backward gathers the layer's input again, and the gradient of its output.
      const auto message = [&](Collective kind, int64_t calls) {
        return TracedMessage{
            .communicator = communicator_names::kGather, .kind = kind, .traffic = {calls, calls * bytes}};
      };
      trace.add({.name = "experts",
                 .forward_messages = {message(Collective::all_gather, 1), message(Collective::reduce_scatter, 1)},
                 .backward_messages = {message(Collective::all_gather, 2), message(Collective::reduce_scatter, 1)}});
    };
  }
}

}  // namespace titan
