// Which CUDA attention kernel a run uses: the one that debug.attention_kernel names, or the fastest in the run's shape.
#pragma once

#include "titan/ops/attention.h"
#include "titan/plan/plan.h"
#include "titan/train/run.h"

namespace titan {

/// Collective: all ranks use the same kernel, so the result does not depend on the timings of single ranks. Throws
/// Error(bad_config) if no kernel, or not the one that is asked for, takes the shape. On a CPU the value has no
/// meaning.
AttentionKernel attention_kernel_for(const Run& run, const Plan& plan);

}  // namespace titan
