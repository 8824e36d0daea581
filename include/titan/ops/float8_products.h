// Linear products in float8: a strategy of ParallelLinear beside DenseProducts. Weights that are not in float8 get the
// dense products of the compute dtype, so one group may hold both. Owned by the model's units; knows no config.
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
  /// Products of fp32 over operands that were rounded to float8, on any hardware.
  bool emulate = false;
  /// Weight gradients are rounded to the compute dtype before they are added up.
  bool round_weight_gradient = false;
  /// A weight with a kept scale is cast once a microbatch, both ways: it stays where it is from forward to backward,
  /// and there is memory for its columns in float8.
  bool keeps_weights = false;
  Float8Casts casts = make_aten_float8_casts();
  /// Ranks that share every matrix agree on the scales of tensors (tensorwise); null: there is one.
  std::shared_ptr<Communicator> tensor = nullptr;
  /// Told once when a product has a shape that the hardware does not multiply in float8 and is emulated instead.
  std::function<void(const std::string&)> tell = {};
};

std::shared_ptr<const LinearProducts> make_float8_products(Float8Options options);

/// One side of a product: rows of what is multiplied along their length, with what they were scaled by.
struct Float8Side {
  at::Tensor rows;    // float8 [m, k]
  Float8Scale scale;  // one number or [m, 1]
};

/// left · rightᵀ, [m, n] of `type`; sums are fp32. `fast`: the hardware may keep partial sums shorter. By
/// at::_scaled_mm where there is one for these operands, else (and with `emulate`) by fp32 products of the operands'
/// values; `emulated` becomes true when that was not asked for.
at::Tensor float8_product(const Float8Side& left, const Float8Side& right, at::ScalarType type, bool fast, bool emulate,
                          bool* emulated = nullptr);

// Float8 casts and amaxes on the fused kernels: what float8.h's interface is filled with where a GPU computes.

/// The bits of make_aten_float8_casts(), which takes what the kernels do not.
Float8Casts make_fused_float8_casts(std::shared_ptr<const FusedKernels> kernels);

}  // namespace titan
