#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/parallel/executor.h"

namespace titan {
namespace {

std::vector<torch::autograd::Edge> edges_of(const Stream& outputs) {
  std::vector<torch::autograd::Edge> edges;
  for (const at::Tensor& output : outputs) edges.push_back(torch::autograd::impl::gradient_edge(output));
  return edges;
}

}  // namespace

Stream EagerRunner::forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) {
  UnitContext& context = *state.context;
  state.leaves.clear();
  for (const at::Tensor& tensor : input) state.leaves.push_back(tensor.detach().set_requires_grad(true));
  Stream output;
  if (context.recorder.checkpointed()) {
    at::NoGradGuard no_graph;
    context.recorder.start(Recorder::Phase::first_run);
    output = unit.forward(state.leaves, batch, context);
  } else {
    output = unit.forward(state.leaves, batch, context);
    state.edges = edges_of(output);
  }
  for (at::Tensor& tensor : output) tensor = tensor.detach();
  return output;
}

Stream EagerRunner::backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) {
  if (state.context->recorder.checkpointed()) {
    state.context->recorder.start(Recorder::Phase::replay);
    state.edges = edges_of(unit.forward(state.leaves, batch, *state.context));
  }
  torch::autograd::edge_list inputs;
  for (const at::Tensor& leaf : state.leaves) inputs.push_back(torch::autograd::impl::gradient_edge(leaf));
  torch::autograd::edge_list roots(state.edges.begin(), state.edges.end());
  Stream input_gradients = torch::autograd::Engine::get_default_engine().execute(
      roots, output_gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/inputs.empty(),
      inputs);
  // The context must outlive queued weight gradients no longer than their tensors do: products hold what they need.
  state = UnitState();
  return input_gradients;
}

}  // namespace titan
