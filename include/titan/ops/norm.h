// Normalisation fused with the residual stream around it: one operation adds, normalises and, in backward, returns the
// sum of both residual gradients, so that a fused kernel can replace it each way. Definitions: docs/models.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>
#include <string_view>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

enum class NormType { rmsnorm, fused_rmsnorm, layernorm, np_layernorm };
/// Case-insensitive; nothing for an unknown name.
std::optional<NormType> norm_type_from_name(std::string_view name);

struct NormResult {
  at::Tensor residual;  // residual + delta, or the residual itself
  at::Tensor normed;
};

class Norm {
 public:
  /// `weight` is null exactly for np_layernorm.
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

/// residual + delta as a unit's closing product: in a replay its value is not needed and not computed.
at::Tensor add_closing(const at::Tensor& residual, const at::Tensor& delta, UnitContext& context);

// The RMS norm's two directions on whichever implementation the device has. Private to ops: norm.cpp is the operation.
// One pass over memory each way on a CPU, LibTorch's operations elsewhere. No autograd here.

struct RmsNormResult {
  at::Tensor normed;  // x's dtype
  at::Tensor scale;   // fp32 [..., 1]: rsqrt(mean(x²) + ε)
};

/// x · scale, rounded to x's dtype before the weight (`fused`: after it), as torchtitan.md §2.4 defines them.
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused);

struct RmsNormGradients {
  at::Tensor input;   // of the norm's input, plus `d_residual` when that is defined
  at::Tensor weight;  // fp32 [D]
};

/// dx = r·(g − x̂·mean(g·x̂)) with x̂ = x·r and g = dy·w; dw = Σ dy·x̂. Statistics and products in fp32.
RmsNormGradients rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                                   const at::Tensor& scale, const at::Tensor& weight);

}  // namespace titan
