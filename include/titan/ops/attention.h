// The attention core: (query, key, value, positions and document bounds) → output, with the log-sum-exp kept for
// backward. One object per block; ring attention and a core with a key-value cache replace it behind the same
// interface.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "titan/ops/attention_kernel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// Where documents begin inside one packed sample: ascending offsets, the first 0; the sample's end closes the last.
using DocumentStarts = std::vector<int64_t>;

/// The batch facts that attention needs. `document_starts` has one entry per sample; empty means "one document each".
struct AttentionBounds {
  std::vector<DocumentStarts> document_starts;
};

class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  /// query [B, T, Hq, d], key and value [B, T, Hk, d] with Hk dividing Hq → [B, T, Hq, d].
  virtual at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const AttentionBounds& bounds, UnitContext& context) const = 0;
};

/// Causal attention, scale 1/√d: tiles of our own on the CPU; on CUDA cuDNN, then flash, and the efficient kernel for
/// fp32. With document starts a token attends only inside its own document: one kernel call per document. `preferred`:
/// the CUDA kernel for half precision, where it takes the shape.
std::unique_ptr<AttentionCore> make_sdpa_core(bool block_causal, AttentionKernel preferred = AttentionKernel::cudnn);

}  // namespace titan
