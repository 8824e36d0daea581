// How this project's operations enter a unit's small autograd graph: a node with typed saved state and an explicit
// backward. Forward and backward run below autograd (no ATen operation records anything), so the graph holds these
// nodes only.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <initializer_list>
#include <memory>
#include <utility>

namespace titan {

/// ATen operations inside this scope skip autograd's bookkeeping altogether.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// Backward of one operation. Saved tensors are consumed: a node runs once.
class BackwardNode : public torch::autograd::Node {
 public:
  /// One gradient per output (undefined where nothing flowed back) → one per input given to `connect`.
  virtual torch::autograd::variable_list backward(torch::autograd::variable_list gradients) = 0;

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) final;
};

/// Whether a graph is being built and any of `inputs` wants a gradient.
bool wants_gradient(std::initializer_list<const at::Tensor*> inputs);

/// Hangs `node` between `inputs` and `outputs`; outputs must be new tensors.
void connect(std::shared_ptr<BackwardNode> node, std::initializer_list<const at::Tensor*> inputs,
             at::ArrayRef<at::Tensor> outputs);

// The numbers of a tensor that is known to hold those of one type.

template <class T>
const T* values(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* results(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace titan
