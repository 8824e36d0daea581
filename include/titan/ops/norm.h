// Normalisation fused with the residual addition: one operation adds and normalises, and its backward returns the sum
// of both residual gradients, so a fused kernel can replace each direction. Also the addition that ends a unit, and the
// RMS norm itself. Definitions: docs/models.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>
#include <string_view>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"
#include "titan/plan/operations.h"

namespace titan {

struct NormResult {
  at::Tensor residual;  // [..., D]: residual + delta, or the residual itself
  at::Tensor normed;    // [..., D]
};

class Norm {
 public:
  /// `weight` is null if and only if the type is np_layernorm.
  Norm(NormType type, Parameter* weight, double epsilon, int ordinal)
      : type_(type), weight_(weight), epsilon_(epsilon), ordinal_(ordinal) {}

  /// residual [..., D], delta [..., D] or undefined → (residual + delta, norm(residual + delta)).
  NormResult forward(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context) const;

 private:
  NormType type_;
  Parameter* weight_;
  double epsilon_;
  int ordinal_;
};

/// residual + delta as a unit's last operation: a replay does not need its value and does not compute it.
at::Tensor add_closing(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context);

// RMS norm, both directions: a single pass over memory on CPU, LibTorch operations elsewhere. Private to ops; no
// autograd.

struct RmsNormResult {
  at::Tensor normed;  // [..., D], x's dtype
  at::Tensor scale;   // fp32 [..., 1]: rsqrt(mean(x²) + ε)
};

/// x [..., D] · scale, rounded to x's dtype before it is multiplied by weight [D] (`fused`: after it), as in
/// torchtitan.
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused);

struct RmsNormGradients {
  at::Tensor input;   // [..., D]: of the norm's input, plus `d_residual` when that is defined
  at::Tensor weight;  // fp32 [D]
};

/// dx = r·(g − x̂·mean(g·x̂)) with x̂ = x·r and g = dy·w; dw = Σ dy·x̂. Statistics and products are fp32. dy [..., D],
/// d_residual [..., D] or undefined, x [..., D], scale [..., 1], weight [D].
RmsNormGradients rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                                   const at::Tensor& scale, const at::Tensor& weight);

}  // namespace titan
