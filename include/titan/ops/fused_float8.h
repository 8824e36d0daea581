// Float8 casts and magnitudes on the fused kernels: what float8.h's interface is filled with where a GPU computes.
#pragma once

#include <memory>

#include "titan/ops/float8.h"
#include "titan/ops/fused_kernels.h"

namespace titan {

/// The bits of make_aten_float8_casts(), which takes what the kernels do not.
Float8Casts make_fused_float8_casts(std::shared_ptr<const FusedKernels> kernels);

}  // namespace titan
