#include "titan/ops/norm.h"

#include <ATen/ATen.h>

#include <array>

#include "titan/base/text.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

// Each result is {normed, statistic 0, statistic 1}; the statistics are fp32 [..., 1] and may be undefined.
using Normalised = std::array<at::Tensor, 3>;

/// x · rsqrt(mean(x²) + ε), rounded to x's dtype before the weight (`fused`: after), as torchtitan.md §2.4 defines
/// them.
Normalised rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused) {
  at::Tensor x32 = x.to(at::kFloat);
  at::Tensor scale = at::mean(x32 * x32, -1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  at::Tensor normed = x32 * scale;
  if (fused) {
    normed = normed.mul_(weight.to(at::kFloat)).to(x.scalar_type());
  } else {
    normed = normed.to(x.scalar_type()).mul_(weight);
  }
  return {normed, scale, at::Tensor()};
}

Normalised layer_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  // In fp32 throughout: for bf16 tensors ATen's CPU kernel would leave bf16 statistics.
  const at::Tensor weight32 = weight.defined() ? weight.to(at::kFloat) : weight;
  auto [normed, mean, scale] = at::native_layer_norm(x.to(at::kFloat), {x.size(-1)}, weight32, {}, epsilon);
  return {normed.to(x.scalar_type()), mean, scale};
}

void add_weight_gradient(Parameter& weight, const at::Tensor& product) {
  at::Tensor sum = product.reshape({-1, product.size(-1)}).sum(0, /*keepdim=*/false, at::kFloat);
  if (weight.gradient_written()) {
    weight.gradient().add_(sum);
  } else {
    weight.gradient().copy_(sum);
    weight.mark_gradient_written();
  }
}

struct NormBackward : BackwardNode {
  NormType type = NormType::rmsnorm;
  Parameter* weight = nullptr;
  at::Tensor x;
  at::Tensor statistic0;
  at::Tensor statistic1;
  bool has_delta = false;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor dx = gradients[1].defined() ? input_gradient(gradients[1]) : at::Tensor();
    if (gradients[0].defined()) dx = dx.defined() ? dx.add_(gradients[0]) : gradients[0];
    x.reset();
    return {dx, has_delta ? dx : at::Tensor()};
  }

  at::Tensor input_gradient(const at::Tensor& dy) {
    const bool rms = type == NormType::rmsnorm || type == NormType::fused_rmsnorm;
    return rms ? rms_gradient(dy) : layer_gradient(dy);
  }

  /// dx = r·(g − x̂·mean(g·x̂)) with x̂ = x·r and g = dy·w; dw = Σ dy·x̂. Statistics and products in fp32.
  at::Tensor rms_gradient(const at::Tensor& dy) {
    at::Tensor dy32 = dy.to(at::kFloat);
    at::Tensor unit = x.to(at::kFloat) * statistic0;
    if (weight->trainable()) add_weight_gradient(*weight, dy32 * unit);
    at::Tensor g = dy32 * weight->weight().to(at::kFloat);
    at::Tensor projection = at::mean(g * unit, -1, /*keepdim=*/true);
    return g.sub_(unit.mul_(projection)).mul_(statistic0).to(x.scalar_type());
  }

  at::Tensor layer_gradient(const at::Tensor& dy) {
    const bool affine = weight != nullptr && weight->trainable();
    const at::Tensor dy32 = dy.to(at::kFloat);
    const at::Tensor x32 = x.to(at::kFloat);
    at::Tensor scale = weight ? weight->weight().to(at::kFloat) : at::Tensor();
    auto [dx, dw, db] = at::native_layer_norm_backward(dy32, x32, {x.size(-1)}, statistic0, statistic1, scale, {},
                                                       {true, false, false});
    if (affine) add_weight_gradient(*weight, dy32 * (x32 - statistic0) * statistic1);
    return dx.to(x.scalar_type());
  }
};

struct AddBackward : BackwardNode {
  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    return {gradients[0], gradients[0]};
  }
};

}  // namespace

std::optional<NormType> norm_type_from_name(std::string_view name) {
  std::string lower = to_lower(name);
  if (lower == "rmsnorm") return NormType::rmsnorm;
  if (lower == "fused_rmsnorm") return NormType::fused_rmsnorm;
  if (lower == "layernorm") return NormType::layernorm;
  if (lower == "np_layernorm") return NormType::np_layernorm;
  return std::nullopt;
}

NormResult Norm::forward(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context) const {
  const bool graph = wants_gradient({&residual, &delta});
  BelowAutograd below;
  at::Tensor x = residual.detach();
  if (delta.defined()) {
    x = context.recorder.once(ResultKind::residual, ordinal_, [&] { return at::add(residual, delta); });
  }
  auto normalise = [&]() -> Normalised {
    at::Tensor weight = weight_ ? weight_->weight() : at::Tensor();
    if (type_ == NormType::layernorm || type_ == NormType::np_layernorm) return layer_norm(x, weight, epsilon_);
    return rms_norm(x, weight, epsilon_, type_ == NormType::fused_rmsnorm);
  };
  auto [normed, statistic0, statistic1] = context.recorder.once<3>(ResultKind::norm, ordinal_, normalise);
  if (graph) {
    auto node = std::make_shared<NormBackward>();
    node->type = type_;
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
  const bool graph = wants_gradient({&residual, &delta});
  BelowAutograd below;
  at::Tensor sum = context.replay() ? placeholder(residual.sizes(), residual.options()) : at::add(residual, delta);
  if (graph) connect(std::make_shared<AddBackward>(), {&residual, &delta}, {sum});
  return sum;
}

}  // namespace titan
