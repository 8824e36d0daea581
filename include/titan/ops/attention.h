// Dense attention, and the choice of LibTorch's CUDA kernel for half precision: cuDNN's by default; a probe at start
// compares the alternatives with it on this device and for these shapes.
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

struct AttentionShape {
  int64_t samples = 1;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

struct KernelTiming {
  AttentionKernel kernel = AttentionKernel::cudnn;
  double seconds = 0;                    // of a forward and a backward
  std::string refusal;                   // why the kernel rejects the shape; empty: it accepts it
  std::exception_ptr device_error = {};  // the refusal, if CUDA and not LibTorch reported it; null: none
};

/// The first of `timings`, or the fastest if it takes less than 0.9 times as long: a choice that flips with noise would
/// change a run's bits. Kernels that refused are skipped; nullopt: all refused.
std::optional<AttentionKernel> choose_kernel(std::span<const KernelTiming> timings);
/// One line: the chosen kernel, and the times of the others relative to it.
std::string describe_choice(AttentionKernel chosen, std::span<const KernelTiming> timings);

/// `measure` returns the seconds of one forward and backward, or throws c10::Error if the kernel rejects the shape.
KernelTiming time_kernel(AttentionKernel kernel, const std::function<double(AttentionKernel)>& measure);
/// Times every candidate kernel.
std::vector<KernelTiming> time_kernels(const std::function<double(AttentionKernel)>& measure);

/// Median seconds of a causal forward and backward on a CUDA device, measured with CUDA events.
double measure_kernel(AttentionKernel kernel, const AttentionShape& shape, at::ScalarType type,
                      const at::Device& device);

// The attention core: (query, key, value, positions and document bounds) → output; the log-sum-exp is saved for
// backward. One object per block; ring attention implements the same interface.

/// Start offsets of the documents in one packed sample: ascending, the first is 0; the last document ends with the
/// sample.
using DocumentStarts = std::vector<int64_t>;

/// The document bounds of a batch: one entry per sample; empty means one document per sample.
struct AttentionBounds {
  std::vector<DocumentStarts> document_starts;
};

class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  /// query [B, T, Hq, d], key and value [B, T, Hk, d] where Hk divides Hq → [B, T, Hq, d].
  virtual at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const AttentionBounds& bounds, UnitContext& context) const = 0;
};

/// Causal attention, scale 1/√d: tiled CPU kernels; on CUDA cuDNN, then flash, and the efficient kernel for fp32. With
/// document starts a token attends only within its document: one kernel call per document. `preferred`: the CUDA kernel
/// for half precision, used if it accepts the shape.
std::unique_ptr<AttentionCore> make_sdpa_core(bool block_causal, AttentionKernel preferred = AttentionKernel::cudnn);

// Accumulators of several attention calls over disjoint sets of keys.

/// fp32; the softmax over the keys seen so far.
struct AttentionSums {
  at::Tensor output;       // [B, T, Hq, d], initially 0
  at::Tensor log_sum_exp;  // [B, Hq, T], initially −∞
};

/// query [B, T, Hq, d], key and value [B, T', Hk, d].
struct AttentionGradients {
  at::Tensor query, key, value;
};

}  // namespace titan
