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

}  // namespace titan
