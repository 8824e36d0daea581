// The RMS norm's two directions on whichever implementation the device has. Private to ops: norm.cpp is the operation.
// One pass over memory each way on a CPU, LibTorch's operations elsewhere. No autograd here.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

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
