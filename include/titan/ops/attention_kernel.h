// Which of LibTorch's CUDA kernels computes dense attention in half precision. cuDNN's is preferred; a probe at the
// start measures the others against it on the device and in the shapes at hand.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace titan
