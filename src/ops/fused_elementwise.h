// Norm, rotary embedding, SwiGLU, the embedding's gradient and cross-entropy on the fused kernels. Each returns nullopt
// or false if there are no kernels or they do not support the tensors; the caller then uses ATen. Private to ops; no
// autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "titan/ops/embedding.h"
#include "titan/ops/norm.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

struct FusedRmsNorm {
  at::Tensor sum;  // [..., D]: x + delta; x itself without a delta
  RmsNormResult norm;
};

/// x [..., D], delta [..., D] or undefined, weight [D], as in Norm.
std::optional<FusedRmsNorm> fused_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                           double epsilon, bool round_once, UnitContext& context);

/// Returns the gradient of the norm's input; writes the weight's gradient to its storage. dy, d_residual (may be
/// undefined) and x are [..., D], scale is [..., 1].
std::optional<at::Tensor> fused_rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual,
                                                  const at::Tensor& x, const at::Tensor& scale, Parameter& weight,
                                                  UnitContext& context);

/// Rotates query [B, T, Hq, d] and key [B, T, Hk, d], of which one may be undefined, by `table`, complex64 [positions,
/// d / 2], at `positions` [B or 1, T], into `turned_query` and `turned_key` (same shapes), which may alias them.
/// Returns false if unsupported. With `inverse` the amaxes of the results are offered: gradients are operands of
/// products.
bool fused_rotate(const at::Tensor& query, const at::Tensor& key, at::Tensor& turned_query, at::Tensor& turned_key,
                  const at::Tensor& table, const at::Tensor& positions, bool inverse, UnitContext& context);

/// gate and up [..., F] → silu(gate) · up [..., F].
std::optional<at::Tensor> fused_swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context);

struct SwigluGradients {
  at::Tensor gate;  // [..., F]
  at::Tensor up;    // [..., F]
};
/// Writes the gradients to `result`; returns false if unsupported. dy, gate and up are [..., F]. Rows of gate and up,
/// and those of their gradients, need not be adjacent.
bool fused_swiglu_backward(const SwigluGradients& result, const at::Tensor& dy, const at::Tensor& gate,
                           const at::Tensor& up, UnitContext& context);

/// gradient[tokens[i] − first] += dy[i], with dy [N, D] and tokens [N], if that row is in the gradient [rows, D];
/// returns false if unsupported. The rows of equal tokens are summed before they are added.
bool fused_embedding_gradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, int64_t first,
                              const UnitContext& context);

/// Over an unsharded vocabulary: logits [rows, V], labels [rows]. The gradient overwrites the logits, in their dtype.
std::optional<RowLosses> fused_row_losses(const at::Tensor& logits, const at::Tensor& labels, const LossScale& scale,
                                          bool want_gradient, const FusedKernels* kernels);
/// Over this rank's vocabulary shard, logits [rows, count], with the two reductions of parallel_row_losses.
std::optional<RowLosses> fused_parallel_row_losses(const at::Tensor& logits, const at::Tensor& labels,
                                                   const LossScale& scale, bool want_gradient,
                                                   const Vocabulary& vocabulary, const FusedKernels* kernels);

}  // namespace titan
