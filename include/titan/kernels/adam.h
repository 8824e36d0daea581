// One Adam or AdamW step over a flat fp32 block on a GPU: a single pass over weight, gradient (which may be bf16) and
// both moments. Raw pointers, sizes and a stream; no tensors.
#pragma once

#include <cstdint>

#include "titan/kernels/elements.h"

namespace titan {

/// Constants of one step; the formulas are in optimize/optimizer.h.
struct AdamConstants {
  float beta1, beta2;
  float epsilon;
  float step_size;   // lr / (1 − β1^t)
  float root_scale;  // 1 / √(1 − β2^t)
  float decay;       // AdamW: 1 − lr·wd multiplies the weight; 1 for Adam
  float coupled;     // Adam: wd·weight is added to the gradient; 0 for AdamW
};

/// One step over `count` elements of each array. `clip` and `skip` are device scalars, so the host never waits: the
/// gradient is multiplied by *clip, and nothing is written if *skip is not 0.
struct AdamStep {
  float* weight = nullptr;
  const void* gradient = nullptr;  // of gradient_type
  float* first = nullptr;
  float* second = nullptr;
  int64_t count = 0;
  AdamConstants constants{};
  const float* clip = nullptr;
  const float* skip = nullptr;
  void* copy = nullptr;  // optional bf16 copy of the new weights, rounded to nearest
  // Optional device floats that multiply step_size and root_scale: the bias corrections, if only the device knows how
  // many steps were applied.
  const float* corrections = nullptr;
  KernelType gradient_type = KernelType::fp32;
  uint32_t* largest = nullptr;  // amax slot of the copy, or else of the new weights, raised as fp32 bits; or null
};

/// Reads four arrays, writes three and the copy; plus the scalars.
constexpr KernelTraffic traffic(const AdamStep& a) {
  return {a.count * (12 + bytes_of(a.gradient_type)) + (a.corrections ? 16 : 8), a.count * (12 + (a.copy ? 2 : 0)), 0};
}

}  // namespace titan
