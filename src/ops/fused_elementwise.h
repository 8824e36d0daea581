// Norm, rotary embedding, SwiGLU, the embedding's gradient and cross-entropy on the fused kernels. Each returns nothing
// where there are none or they do not take the tensors, and its operation goes on with ATen's. Private to ops; no
// autograd here.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "titan/ops/embedding.h"
#include "titan/ops/norm.h"
#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

struct FusedRmsNorm {
  at::Tensor sum;  // x + delta; x itself without a delta
  RmsNormResult norm;
};

/// x [..., D] and delta (or undefined) as Norm has them.
std::optional<FusedRmsNorm> fused_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                           double epsilon, bool round_once, UnitContext& context);

/// The gradient of the norm's input; the weight's goes to its storage.
std::optional<at::Tensor> fused_rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual,
                                                  const at::Tensor& x, const at::Tensor& scale, Parameter& weight,
                                                  UnitContext& context);

/// Whether query [B, T, Hq, d] and key (either may be undefined) were turned by `table`, complex64, into `turned_*`,
/// which may be the same. The amaxes of what `inverse` gives are offered: gradients are operands of products.
bool fused_rotate(const at::Tensor& query, const at::Tensor& key, at::Tensor& turned_query, at::Tensor& turned_key,
                  const at::Tensor& table, const at::Tensor& positions, bool inverse, UnitContext& context);

std::optional<at::Tensor> fused_swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context);

struct SwigluGradients {
  at::Tensor gate;
  at::Tensor up;
};
std::optional<SwigluGradients> fused_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                                                     UnitContext& context);

/// Whether gradient[tokens[i] − first] += dy[i] was done for the tokens whose words the gradient [rows, D] has; a
/// word's rows are summed before they are added.
bool fused_embedding_gradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, int64_t first,
                              const UnitContext& context);

/// Of all words of a vocabulary; the gradient takes the logits' place and dtype.
std::optional<RowLosses> fused_row_losses(const at::Tensor& logits, const at::Tensor& labels, const LossScale& scale,
                                          bool want_gradient, const FusedKernels* kernels);
/// Of this rank's words of a vocabulary that ranks share, with the two reductions of parallel_row_losses.
std::optional<RowLosses> fused_parallel_row_losses(const at::Tensor& logits, const at::Tensor& labels,
                                                   const LossScale& scale, bool want_gradient,
                                                   const Vocabulary& vocabulary, const FusedKernels* kernels);

}  // namespace titan
