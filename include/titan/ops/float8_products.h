// Linear products in float8: a strategy of ParallelLinear, like DenseProducts. Weights not marked for float8 use dense
// products in the compute dtype, so one ParallelLinear may mix both. Owned by the model's units; knows no config.
#pragma once

#include <memory>
#include <string>

#include "titan/distributed/communicator.h"
#include "titan/ops/float8.h"
#include "titan/ops/fused_kernels.h"
#include "titan/ops/linear.h"

namespace titan {

struct Float8Options {
  Float8Recipe recipe = Float8Recipe::tensorwise;
  /// fp32 products over operands rounded to float8, on any hardware.
  bool emulate = false;
  /// Round weight gradients to the compute dtype before accumulating them.
  bool round_weight_gradient = false;
  /// Cast a weight that has a stored scale once per microbatch, in both layouts: it stays unsharded from forward to
  /// backward, and memory for the transposed float8 copy is available.
  bool keeps_weights = false;
  Float8Casts casts = make_aten_float8_casts();
  /// Ranks that share every matrix agree on tensorwise scales; null: a single rank.
  std::shared_ptr<Communicator> tensor = nullptr;
  /// Called once when hardware float8 does not support a product's shape and it is emulated.
  std::function<void(const std::string&)> warn = {};
};

std::shared_ptr<const LinearProducts> make_float8_products(Float8Options options);

/// One operand of a product: rows along the contracted dimension, and their scale.
struct Float8Side {
  at::Tensor rows;    // float8 [m, k]
  Float8Scale scale;  // one number or [m, 1]
};

/// left · rightᵀ, [m, n] of `type`, with fp32 sums. `fast`: the hardware may accumulate at lower precision. Uses
/// at::_scaled_mm where it supports the operands; otherwise (and with `emulate`) fp32 products of the operands' values;
/// sets `emulated` if that was a fallback.
at::Tensor float8_product(const Float8Side& left, const Float8Side& right, at::ScalarType type, bool fast, bool emulate,
                          bool* emulated = nullptr);

// Float8 casts and amaxes on the fused kernels.

/// Same bits as make_aten_float8_casts(), which handles what the kernels do not support.
Float8Casts make_fused_float8_casts(std::shared_ptr<const FusedKernels> kernels);

}  // namespace titan
