#include "titan/ops/attention_kernel.h"

#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>

#include "attention_kernels.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr double kClearlyFaster = 0.9;
constexpr int kWarmUps = 2;
constexpr size_t kRuns = 5;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string_view name(AttentionKernel kernel) {
  constexpr std::array<std::string_view, 3> kNames{"cuDNN", "flash", "memory-efficient"};
  return kNames[static_cast<size_t>(kernel)];
}

std::optional<AttentionKernel> choose_kernel(std::span<const KernelTiming> timings) {
  const KernelTiming* first = nullptr;
  const KernelTiming* fastest = nullptr;
  for (const KernelTiming& timing : timings) {
    if (!timing.refusal.empty()) continue;
    if (!first) first = &timing;
    if (!fastest || timing.seconds < fastest->seconds) fastest = &timing;
  }
  if (!first) return std::nullopt;
  return fastest->seconds < kClearlyFaster * first->seconds ? fastest->kernel : first->kernel;
}

std::string describe_choice(AttentionKernel chosen, std::span<const KernelTiming> timings) {
  const auto own =
      std::find_if(timings.begin(), timings.end(), [&](const KernelTiming& timing) { return timing.kernel == chosen; });
  TITAN_CHECK(own != timings.end(), name(chosen));
  std::vector<std::string> others;
  for (const KernelTiming& timing : timings) {
    if (timing.kernel == chosen) continue;
    others.push_back(timing.refusal.empty() ? fmt::format("{} takes {:.2f} times as long", name(timing.kernel),
                                                          timing.seconds / own->seconds)
                                            : fmt::format("{} does not take the shape", name(timing.kernel)));
  }
  return fmt::format("Attention by {}: {:.2f} ms forward and backward; {}", name(chosen), 1e3 * own->seconds,
                     join(others, ", "));
}

std::vector<KernelTiming> time_kernels(const std::function<double(AttentionKernel)>& measure) {
  std::vector<KernelTiming> timings;
  for (AttentionKernel kernel : {AttentionKernel::cudnn, AttentionKernel::flash, AttentionKernel::efficient}) {
    KernelTiming timing{kernel, 0, {}};
    try {
      timing.seconds = measure(kernel);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      timing.refusal = first_line(error.what_without_backtrace());
    }
    timings.push_back(std::move(timing));
  }
  return timings;
}

double measure_kernel(AttentionKernel kernel, const AttentionShape& shape, at::ScalarType type,
                      const at::Device& device) {
  const auto options = at::TensorOptions(device).dtype(type);
  auto drawn = [&](int64_t heads) {
    return at::randn({shape.samples, shape.length, heads, shape.head_dim}, options).transpose(1, 2);
  };
  const at::Tensor query = drawn(shape.heads);
  const at::Tensor key = drawn(shape.kv_heads);
  const at::Tensor value = drawn(shape.kv_heads);
  const at::Tensor d_output = drawn(shape.heads);
  const c10::impl::VirtualGuardImpl guard(device.type());
  std::vector<double> seconds;
  for (int run = -kWarmUps; run < static_cast<int>(kRuns); ++run) {
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(guard.getStream(device));
    const DenseAttention forward = dense_attention(kernel, query, key, value, /*causal=*/true);
    dense_attention_backward(kernel, d_output, query, key, value, forward, /*causal=*/true);
    end.record(guard.getStream(device));
    end.synchronize();
    if (run >= 0) seconds.push_back(1e-3 * begin.elapsedTime(end));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

}  // namespace titan
