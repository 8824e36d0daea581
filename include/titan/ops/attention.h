// Which of LibTorch's CUDA kernels computes dense attention in half precision. cuDNN's is preferred; a probe at the
// start measures the others against it on the device and in the shapes at hand.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/ops/unit_context.h"

namespace titan {

enum class AttentionKernel : uint8_t { cudnn, flash, efficient };
std::string_view name(AttentionKernel kernel);

/// One call's shape.
struct AttentionShape {
  int64_t samples = 1;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

struct KernelTiming {
  AttentionKernel kernel = AttentionKernel::cudnn;
  double seconds = 0;   // of a forward and a backward
  std::string refusal;  // why the kernel does not take the shape; empty: it does
};

/// The first of `timings`, or the fastest when that takes less than nine tenths of the first one's time: a choice that
/// noise changes from start to start would change the bits of a run. Kernels that refused do not count; none: all did.
std::optional<AttentionKernel> choose_kernel(std::span<const KernelTiming> timings);
/// For people: the choice, and what the others take compared with it.
std::string describe_choice(AttentionKernel chosen, std::span<const KernelTiming> timings);

/// Times every kernel that could serve; `measure` gives the seconds of one forward and backward, or throws c10::Error
/// where the kernel does not take the shape.
std::vector<KernelTiming> time_kernels(const std::function<double(AttentionKernel)>& measure);

/// Seconds of a causal forward and backward on a CUDA device, the median of several, by the device's clock.
double measure_kernel(AttentionKernel kernel, const AttentionShape& shape, at::ScalarType type,
                      const at::Device& device);

// The attention core: (query, key, value, positions and document bounds) → output, with the log-sum-exp kept for
// backward. One object per block; ring attention and a core with a key-value cache replace it behind the same
// interface.

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

// What several calls of an attention kernel add up, each over other keys.

/// fp32; the softmax over the keys so far.
struct AttentionSums {
  at::Tensor output;       // [B, T, Hq, d], 0 at first
  at::Tensor log_sum_exp;  // [B, Hq, T], −∞ at first
};

/// query [B, T, Hq, d], key and value [B, T', Hk, d].
struct AttentionGradients {
  at::Tensor query, key, value;
};

}  // namespace titan
