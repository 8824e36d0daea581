#include "titan/ops/norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <array>

#include "cpu_elementwise.h"
#include "fused_elementwise.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/fused_kernels.h"

namespace titan {
namespace {

// Each result is {normed, statistic 0, statistic 1}; the statistics are fp32 [..., 1] and may be undefined.
using Normalised = std::array<at::Tensor, 3>;

Normalised layer_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  // fp32 throughout: for bf16 input ATen's CPU kernel would return bf16 statistics.
  const at::Tensor weight32 = weight.defined() ? weight.to(at::kFloat) : weight;
  auto [normed, mean, scale] = at::native_layer_norm(x.to(at::kFloat), {x.size(-1)}, weight32, {}, epsilon);
  return {normed.to(x.scalar_type()), mean, scale};
}

/// The weight [D] of a norm over x [..., D].
void check_norm_weight(const at::Tensor& x, const at::Tensor& weight) {
  TITAN_CHECK(same_kind(x, weight) && x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), summary_of(x),
              summary_of(weight));
}

struct NormBackward : BackwardNode {
  NormType type = NormType::rmsnorm;
  UnitContext* context = nullptr;
  Parameter* weight = nullptr;
  at::Tensor x;
  at::Tensor statistic0;
  at::Tensor statistic1;
  bool has_delta = false;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor dx = gradients[0];
    if (gradients[1].defined()) dx = total_gradient(gradients[1], gradients[0]);
    x.reset();
    return {dx, has_delta ? dx : at::Tensor()};
  }

  /// Gradient of the sum before the norm: through the norm plus the residual path.
  at::Tensor total_gradient(const at::Tensor& dy, const at::Tensor& d_residual) {
    if (!is_rms_norm(type)) {
      at::Tensor dx = layer_gradient(dy);
      return d_residual.defined() ? dx.add_(d_residual) : dx;
    }
    if (auto dx = fused_rms_norm_backward(dy, d_residual, x, statistic0, *weight, *context)) return *dx;
    RmsNormGradients gradients = rms_norm_backward(dy, d_residual, x, statistic0, weight->weight());
    if (weight->trainable()) weight->add_to_gradient(gradients.weight);
    return gradients.input;
  }

  at::Tensor layer_gradient(const at::Tensor& dy) {
    const bool affine = weight != nullptr && weight->trainable();
    const at::Tensor dy32 = dy.to(at::kFloat);
    const at::Tensor x32 = x.to(at::kFloat);
    at::Tensor scale = weight ? weight->weight().to(at::kFloat) : at::Tensor();
    auto [dx, dw, db] = at::native_layer_norm_backward(dy32, x32, {x.size(-1)}, statistic0, statistic1, scale, {},
                                                       {true, false, false});
    if (affine) {
      at::Tensor product = dy32 * (x32 - statistic0) * statistic1;
      weight->add_to_gradient(product.reshape({-1, x.size(-1)}).sum(0));
    }
    return dx.to(x.scalar_type());
  }
};

struct AddBackward : BackwardNode {
  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    return {gradients[0], gradients[0]};
  }
};

}  // namespace

NormResult Norm::forward(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context) const {
  TITAN_CHECK(!delta.defined() || same_form(residual, delta), summary_of(residual), summary_of(delta));
  if (weight_) check_norm_weight(residual, weight_->weight());
  const bool graph = wants_gradient({&residual, &delta});
  BelowAutograd below;
  at::Tensor x = residual.detach();
  const at::Tensor weight = weight_ ? weight_->weight() : at::Tensor();
  const bool round_once = type_ == NormType::fused_rmsnorm;
  // One kernel makes sum and norm, unless a replay has kept the norm: then only the sum is needed.
  std::optional<FusedRmsNorm> fused;
  if (delta.defined()) {
    const bool norm_is_kept = context.replay() && context.recorder.keeps(ResultKind::norm, ordinal_);
    x = context.recorder.once(ResultKind::residual, ordinal_, [&] {
      if (is_rms_norm(type_) && !norm_is_kept)
        fused = fused_rms_norm(residual.detach(), delta.detach(), weight, epsilon_, round_once, context);
      return fused ? fused->sum : at::add(residual, delta);
    });
  }
  auto normalise = [&]() -> Normalised {
    if (!is_rms_norm(type_)) {
      if (context.kernels) context.kernels->fall_back("a layer norm");
      return layer_norm(x, weight, epsilon_);
    }
    if (!fused) fused = fused_rms_norm(x, {}, weight, epsilon_, round_once, context);
    RmsNormResult result = fused ? fused->norm : rms_norm(x, weight, epsilon_, round_once);
    return {result.normed, result.scale, at::Tensor()};
  };
  auto [normed, statistic0, statistic1] = context.recorder.once<3>(ResultKind::norm, ordinal_, normalise);
  if (graph) {
    auto node = std::make_shared<NormBackward>();
    node->type = type_;
    node->context = &context;
    node->weight = weight_;
    node->x = x.detach();
    node->statistic0 = statistic0;
    node->statistic1 = statistic1;
    node->has_delta = delta.defined();
    context.note_saved(x);
    context.note_saved(statistic0);
    context.note_saved(statistic1);
    connect(std::move(node), {&residual, &delta}, {x, normed});
  }
  return {x, normed};
}

at::Tensor add_closing(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context) {
  TITAN_CHECK(same_form(residual, delta), summary_of(residual), summary_of(delta));
  const bool graph = wants_gradient({&residual, &delta});
  BelowAutograd below;
  at::Tensor sum = context.replay() ? placeholder(residual.sizes(), residual.options()) : at::add(residual, delta);
  if (graph) connect(std::make_shared<AddBackward>(), {&residual, &delta}, {sum});
  return sum;
}

namespace {

bool has_cpu_kernel(const at::Tensor& x, const at::Tensor& weight) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && x.is_contiguous() && weight.is_contiguous() && weight.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16);
}

RmsNormShape shape_of(const at::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

template <class T>
RmsNormResult forward_cpu(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused) {
  const RmsNormShape shape = shape_of(x);
  std::vector<int64_t> statistics = x.sizes().vec();
  statistics.back() = 1;
  RmsNormResult result{at::empty(x.sizes(), x.options()), at::empty(statistics, x.options().dtype(at::kFloat))};
  T* normed = static_cast<T*>(result.normed.mutable_data_ptr());
  float* scale = result.scale.mutable_data_ptr<float>();
  // Rows; with fewer, starting a thread takes longer than their arithmetic.
  at::parallel_for(0, shape.rows, 16, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * shape.dim;
    cpu_rms_norm(normed + at, scale + begin, values<T>(x) + at, values<T>(weight), {end - begin, shape.dim},
                 static_cast<float>(epsilon), fused);
  });
  return result;
}

template <class T>
RmsNormGradients backward_cpu(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                              const at::Tensor& scale, const at::Tensor& weight) {
  const RmsNormShape shape = shape_of(x);
  const int64_t blocks = (shape.rows + kNormBlockRows - 1) / kNormBlockRows;
  at::Tensor dx = at::empty(x.sizes(), x.options());
  at::Tensor sums = at::zeros({blocks, shape.dim}, x.options().dtype(at::kFloat));
  const T* residual = d_residual.defined() ? values<T>(d_residual) : nullptr;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block * kNormBlockRows;
      const int64_t at = row * shape.dim;
      cpu_rms_norm_backward(static_cast<T*>(dx.mutable_data_ptr()) + at,
                            sums.mutable_data_ptr<float>() + block * shape.dim, values<T>(dy) + at,
                            residual ? residual + at : nullptr, values<T>(x) + at, values<float>(scale) + row,
                            values<T>(weight), {std::min(kNormBlockRows, shape.rows - row), shape.dim});
    }
  });
  return {dx, sums.sum(0)};
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused) {
  check_norm_weight(x, weight);
  if (has_cpu_kernel(x, weight)) {
    return x.scalar_type() == at::kFloat ? forward_cpu<float>(x, weight, epsilon, fused)
                                         : forward_cpu<BFloat16Bits>(x, weight, epsilon, fused);
  }
  at::Tensor x32 = x.to(at::kFloat);
  at::Tensor scale = at::mean(x32 * x32, -1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  at::Tensor normed = x32 * scale;
  if (fused) return {normed.mul_(weight.to(at::kFloat)).to(x.scalar_type()), scale};
  return {normed.to(x.scalar_type()).mul_(weight), scale};
}

RmsNormGradients rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                                   const at::Tensor& scale, const at::Tensor& weight) {
  check_norm_weight(x, weight);
  TITAN_CHECK(same_form(dy, x) && (!d_residual.defined() || same_form(d_residual, x)), summary_of(dy),
              summary_of(d_residual), summary_of(x));
  TITAN_CHECK(
      scale.scalar_type() == at::kFloat && scale.device() == x.device() && scale.numel() * x.size(-1) == x.numel(),
      summary_of(scale), summary_of(x));
  if (has_cpu_kernel(x, weight)) {
    const at::Tensor d_normed = dy.contiguous();
    const at::Tensor residual = d_residual.defined() ? d_residual.contiguous() : d_residual;
    return x.scalar_type() == at::kFloat ? backward_cpu<float>(d_normed, residual, x, scale, weight)
                                         : backward_cpu<BFloat16Bits>(d_normed, residual, x, scale, weight);
  }
  at::Tensor dy32 = dy.to(at::kFloat);
  at::Tensor unit = x.to(at::kFloat) * scale;
  at::Tensor weight_gradient = (dy32 * unit).reshape({-1, x.size(-1)}).sum(0);
  at::Tensor g = dy32 * weight.to(at::kFloat);
  at::Tensor projection = at::mean(g * unit, -1, /*keepdim=*/true);
  at::Tensor dx = g.sub_(unit.mul_(projection)).mul_(scale);
  if (d_residual.defined()) dx.add_(d_residual);
  return {dx.to(x.scalar_type()), weight_gradient};
}

}  // namespace titan
