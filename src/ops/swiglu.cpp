#include "titan/ops/swiglu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cpu_elementwise.h"
#include "fused_elementwise.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

constexpr int64_t kGrain = 1 << 14;  // minimum elements per thread

bool has_cpu_kernel(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return tensor->is_cpu() && tensor->is_contiguous() && tensor->scalar_type() == type;
  });
}

template <class T>
void swiglu_on_cpu(const at::Tensor& result, const at::Tensor& gate, const at::Tensor& up) {
  at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
    cpu_swiglu(results<T>(result) + begin, values<T>(gate) + begin, values<T>(up) + begin, end - begin);
  });
}

template <class T>
void swiglu_backward_on_cpu(const at::Tensor& d_gate, const at::Tensor& d_up, const at::Tensor& dy,
                            const at::Tensor& gate, const at::Tensor& up) {
  at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
    cpu_swiglu_backward(results<T>(d_gate) + begin, results<T>(d_up) + begin, values<T>(dy) + begin,
                        values<T>(gate) + begin, values<T>(up) + begin, end - begin);
  });
}

at::Tensor activate(const at::Tensor& gate, const at::Tensor& up) {
  if (!has_cpu_kernel({&gate, &up})) return at::silu(gate).mul_(up);
  at::Tensor result = at::empty(gate.sizes(), gate.options());
  const auto run = gate.scalar_type() == at::kFloat ? swiglu_on_cpu<float> : swiglu_on_cpu<BFloat16Bits>;
  run(result, gate, up);
  return result;
}

struct SwigluNode : BackwardNode {
  UnitContext* context = nullptr;
  at::Tensor gate;
  at::Tensor up;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    const at::Tensor& dy = gradients[0];
    at::Tensor d_gate, d_up;
    if (auto fused = fused_swiglu_backward(dy, gate, up, *context)) {
      d_gate = fused->gate;
      d_up = fused->up;
    } else if (has_cpu_kernel({&gate, &up, &dy})) {
      d_gate = at::empty(gate.sizes(), gate.options());
      d_up = at::empty(up.sizes(), up.options());
      const auto run =
          gate.scalar_type() == at::kFloat ? swiglu_backward_on_cpu<float> : swiglu_backward_on_cpu<BFloat16Bits>;
      run(d_gate, d_up, dy, gate, up);
    } else {
      d_up = at::silu(gate).mul_(dy);
      d_gate = at::silu_backward(at::mul(dy, up), gate);
    }
    gate.reset();
    up.reset();
    return {d_gate, d_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context) {
  const bool graph = wants_gradient({&gate, &up});
  BelowAutograd below;
  at::Tensor result = context.recorder.once(ResultKind::activation, 0, [&] {
    std::optional<at::Tensor> fused = fused_swiglu(gate.detach(), up.detach(), context);
    return fused ? *fused : activate(gate, up);
  });
  if (graph) {
    auto node = std::make_shared<SwigluNode>();
    node->context = &context;
    node->gate = gate.detach();
    node->up = up.detach();
    context.note_saved(gate);
    context.note_saved(up);
    connect(std::move(node), {&gate, &up}, {result});
  }
  return result;
}

TracedTensor trace_swiglu(UnitTrace& trace, TracedTensor gate, TracedTensor up) {
  const auto bytes = static_cast<double>(trace.bytes(gate));
  const bool plain = trace.shape().on_gpu && !trace.shape().fused_kernels;
  const TracedTensor result = trace.tensor(trace.bytes(gate), ResultKind::activation, 0);
  trace.add({.name = "swiglu",
             .inputs = {gate, up},
             .results = {result},
             .saved = {gate, up},
             .backward_scratch = plain ? trace.bytes(gate) : 0,
             .forward = {{.bytes = (plain ? 5 : 3) * bytes}},
             .backward = {{.bytes = (plain ? 11 : 5) * bytes}}});
  return result;
}

}  // namespace titan
