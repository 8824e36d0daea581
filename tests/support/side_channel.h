// A family for tests whose units hand on two tensors, the residual stream and a narrow one beside it, and whose blocks
// report statistics: Llama's units, with something around them. Written plainly.
//   embedding: h, s = tanh(h[:, :4])
//   block:     x = h + s;  s' = tanh(s + x[:, :4]);  h' = block(x)
//              statistics: Σ s'² per column / valid tokens, which is minimised with the loss; tokens
//   head:      head(h + s)
// where "h + s" adds s to the first columns of h.
#pragma once

#include <string>
#include <utility>

#include "titan/plan/description.h"

namespace titan {

inline constexpr int64_t kSideWidth = 4;

/// `factor`: of the energy in what a step minimises.
inline void add_side_channel(ModelDescription& model, double factor) {
  for (UnitDescription& unit : model.units) {
    const UnitRole role = unit.role;
    if (role != UnitRole::head) unit.hands_on.push_back({"side channel", kSideWidth});
    if (role == UnitRole::block) unit.statistics = {{"side energy", kSideWidth, factor}, {"tokens seen", 1, 0}};
    unit.trace = [plain = unit.trace, role](UnitTrace& trace) {
      plain(trace);
      std::vector<TracedTensor> inputs = trace.inputs(), outputs = trace.outputs();
      const TraceShape& shape = trace.shape();
      const int64_t bytes = shape.tokens() / shape.tensor_ranks * kSideWidth * shape.element_size;
      TracedOperation side{.name = "side channel"};
      if (role != UnitRole::embedding) inputs.push_back(trace.tensor(bytes)), side.inputs = {inputs.back()};
      if (role != UnitRole::head) outputs.push_back(trace.tensor(bytes)), side.results = side.saved = {outputs.back()};
      trace.add(std::move(side));
      trace.set_ends(inputs, outputs);
    };
  }
}

}  // namespace titan
