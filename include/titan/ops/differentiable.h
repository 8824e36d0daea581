// How this project's operations enter a unit's autograd graph: a node with typed saved state and an explicit backward.
// Forward and backward run below autograd (no ATen operation is recorded), so the graph holds only these nodes.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <initializer_list>
#include <memory>
#include <utility>

namespace titan {

/// ATen operations in this scope skip autograd.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// Backward of one operation. It consumes the saved tensors: a node runs once.
class BackwardNode : public torch::autograd::Node {
 public:
  /// Takes one gradient per output, undefined where there is none; returns one per input passed to `connect`.
  virtual torch::autograd::variable_list backward(torch::autograd::variable_list gradients) = 0;

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) final;
};

/// True if grad mode is on and any of `inputs` (any shapes) requires a gradient.
bool wants_gradient(std::initializer_list<const at::Tensor*> inputs);

/// Connects `node` between `inputs` and `outputs` (any shapes); outputs must be new tensors.
void connect(std::shared_ptr<BackwardNode> node, std::initializer_list<const at::Tensor*> inputs,
             at::ArrayRef<at::Tensor> outputs);

// Typed raw pointers to the elements of a `tensor` of any shape.

template <class T>
const T* values(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* results(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace titan
