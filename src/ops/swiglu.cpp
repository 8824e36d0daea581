#include "titan/ops/swiglu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "cpu_elementwise.h"
#include "fused_elementwise.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements: with fewer, starting a thread takes longer than their arithmetic

bool has_cpu_kernel(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return tensor->is_cpu() && tensor->scalar_type() == type && strided_rows(*tensor, 1);
  });
}

/// Calls `run(count, offsets...)` on several threads for runs of adjacent elements. `offsets`: where the run begins in
/// each of `tensors`, which have the same shape.
template <size_t N, class Run>
void for_runs(const std::array<const at::Tensor*, N>& tensors, const Run& run) {
  std::array<int64_t, N> strides{};
  bool dense = true;
  const StridedRows rows = *strided_rows(*tensors[0], 1);
  for (size_t i = 0; i < N; ++i) {
    strides[i] = strided_rows(*tensors[i], 1)->stride;
    dense = dense && strides[i] == rows.width;
  }
  if (dense) {
    return at::parallel_for(0, tensors[0]->numel(), kGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N> offsets;
      offsets.fill(begin);
      run(end - begin, offsets);
    });
  }
  at::parallel_for(0, rows.rows, std::max<int64_t>(1, kGrain / rows.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::array<int64_t, N> offsets;
      for (size_t i = 0; i < N; ++i) offsets[i] = row * strides[i];
      run(rows.width, offsets);
    }
  });
}

template <class T>
void swiglu_on_cpu(const at::Tensor& result, const at::Tensor& gate, const at::Tensor& up) {
  for_runs<3>({&result, &gate, &up}, [&](int64_t count, const std::array<int64_t, 3>& at) {
    cpu_swiglu(results<T>(result) + at[0], values<T>(gate) + at[1], values<T>(up) + at[2], count);
  });
}

template <class T>
void swiglu_backward_on_cpu(const at::Tensor& d_gate, const at::Tensor& d_up, const at::Tensor& dy,
                            const at::Tensor& gate, const at::Tensor& up) {
  for_runs<5>({&d_gate, &d_up, &dy, &gate, &up}, [&](int64_t count, const std::array<int64_t, 5>& at) {
    cpu_swiglu_backward(results<T>(d_gate) + at[0], results<T>(d_up) + at[1], values<T>(dy) + at[2],
                        values<T>(gate) + at[3], values<T>(up) + at[4], count);
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
  std::shared_ptr<ColumnGradients> columns;  // null: none

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    const at::Tensor& dy = gradients[0];
    const auto room = [&](size_t i, const at::Tensor& like) {
      return columns ? columns->columns(i, like) : at::empty(like.sizes(), like.options());
    };
    const SwigluGradients d{room(0, gate), room(1, up)};
    if (!fused_swiglu_backward(d, dy, gate, up, *context)) compute(d, dy);
    gate.reset();
    up.reset();
    return {d.gate, d.up};
  }

  void compute(const SwigluGradients& d, const at::Tensor& dy) const {
    if (has_cpu_kernel({&gate, &up, &dy})) {
      const auto run =
          gate.scalar_type() == at::kFloat ? swiglu_backward_on_cpu<float> : swiglu_backward_on_cpu<BFloat16Bits>;
      return run(d.gate, d.up, dy, gate, up);
    }
    at::Tensor d_gate = d.gate, d_up = d.up;
    at::silu_out(d_up, gate).mul_(dy);
    at::silu_backward_out(d_gate, at::mul(dy, up), gate);
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context,
                  std::shared_ptr<ColumnGradients> gradients) {
  TITAN_CHECK(same_form(gate, up) && gate.dim() >= 1, summary_of(gate), summary_of(up));
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
    node->columns = std::move(gradients);
    context.note_saved(gate);
    context.note_saved(up);
    connect(std::move(node), {&gate, &up}, {result});
  }
  return result;
}

}  // namespace titan
