// Running one operation as a unit would: a context of its own, parameters with storage, and backward through the small
// graph.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cmath>
#include <memory>
#include <string>

#include "tensors.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// A parameter whose weight is there and whose gradient storage is filled with NaN until an operation writes it.
inline std::unique_ptr<Parameter> live_parameter(const std::string& name, const at::Tensor& weight,
                                                 bool trainable = true) {
  ParameterSpec spec{name, weight.sizes().vec(), {}, trainable};
  auto parameter = std::make_unique<Parameter>(spec);
  parameter->set_weight(weight);
  parameter->set_gradient(at::full(weight.sizes(), NAN, at::TensorOptions(at::kFloat)));
  return parameter;
}

/// Gives the weight storage for a gradient in bf16, filled with NaN, which is written once.
inline void narrow_gradient(Parameter& parameter) {
  parameter.set_gradient(at::full(parameter.unsharded_box().extent, NAN, at::TensorOptions(at::kBFloat16)));
}

/// A context that checkpoints nothing and runs weight gradients at once.
struct PlainContext {
  ImmediateSink sink;
  UnitContext context{UnitMode::train, RecomputePolicy::none(), sink};
};

/// A leaf of an operation's graph.
inline at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().set_requires_grad(true); }

/// Gradients of `inputs` from those of `outputs`, as the executor asks for them: one call for all roots.
inline std::vector<at::Tensor> backward(const std::vector<at::Tensor>& outputs,
                                        const std::vector<at::Tensor>& gradients,
                                        const std::vector<at::Tensor>& inputs) {
  torch::autograd::edge_list roots, leaves;
  for (const at::Tensor& output : outputs) roots.push_back(torch::autograd::impl::gradient_edge(output));
  for (const at::Tensor& input : inputs) leaves.push_back(torch::autograd::impl::gradient_edge(input));
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                               /*create_graph=*/false, /*accumulate_grad=*/false,
                                                               leaves);
}

}  // namespace titan
