// One Adam or AdamW step over a flat fp32 block on a GPU: a single pass over weight, gradient and both moments.
// Raw pointers, sizes and a stream; no tensors.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace titan {

/// Constants of one step; the formulas are in optimize/optimizer.h.
struct AdamConstants {
  float beta1, beta2;
  float epsilon;
  float step_size;   // lr / (1 − β1^t)
  float root_scale;  // 1 / √(1 − β2^t)
  float decay;       // AdamW: 1 − lr·wd multiplies the weight; 1 for Adam
  float coupled;     // Adam: wd·weight joins the gradient; 0 for AdamW
};

/// Reads 16 and writes 12 bytes an element. `clip` and `skip` are device scalars: the gradient is multiplied by *clip,
/// and nothing is written when *skip is not 0, so the host never waits for either. Throws std::runtime_error when the
/// launch fails.
void launch_adam(float* weight, const float* gradient, float* first, float* second, int64_t count,
                 const AdamConstants& constants, const float* clip, const float* skip, CUstream_st* stream);

}  // namespace titan
