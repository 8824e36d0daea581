// What the device itself can do in the shapes of a model's step: its matrix products, attention and memory copies, each
// measured alone. scripts/gpu/bench.py assembles from it the time below which no arrangement of the step can come.
//   bench_device_ceiling DEVICE DIM HIDDEN HEADS KV_HEADS LAYERS VOCABULARY TOKENS SEQUENCE bf16|float8
// prints one JSON object: seconds of a step's products and attention, bytes per second of a copy (read and written).
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "titan/gpu/cuda.h"
#include "titan/ops/attention.h"

namespace titan {
namespace {

constexpr int kWarmUps = 3;
constexpr size_t kRuns = 7;

double median_seconds(const at::Device& device, const std::function<void()>& work) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  std::vector<double> seconds;
  for (int run = -kWarmUps; run < static_cast<int>(kRuns); ++run) {
    const auto start = std::chrono::steady_clock::now();
    double taken = 0;
    if (device.is_cpu()) {
      work();
      taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } else {
      c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      begin.record(guard.getStream(device));
      work();
      end.record(guard.getStream(device));
      end.synchronize();
      taken = 1e-3 * begin.elapsedTime(end);
    }
    if (run >= 0) seconds.push_back(taken);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

/// Seconds of x·wᵀ, dy·w and dyᵀ·x of one weight [rows, inner] over `tokens` rows.
double layer_seconds(const at::Device& device, int64_t tokens, int64_t rows, int64_t inner, bool float8) {
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  auto product = [&](int64_t m, int64_t k, int64_t n) {
    const at::Tensor left = at::randn({m, k}, options);
    const at::Tensor right = at::randn({n, k}, options);
    if (!float8) return median_seconds(device, [&] { at::mm(left, right.t()); });
    const at::Tensor one = at::ones({}, options.dtype(at::kFloat));
    const at::Tensor a = left.to(at::kFloat8_e4m3fn);
    const at::Tensor b = right.to(at::kFloat8_e4m3fn);
    return median_seconds(device, [&] {
      at::_scaled_mm(a, b.t(), one, one, std::nullopt, std::nullopt, at::kBFloat16, /*use_fast_accum=*/true);
    });
  };
  return product(tokens, inner, rows) + product(tokens, rows, inner) + product(rows, tokens, inner);
}

int run(const std::vector<std::string>& words) {
  if (words.size() != 10) {
    std::fprintf(stderr,
                 "usage: bench_device_ceiling DEVICE DIM HIDDEN HEADS KV_HEADS LAYERS VOCABULARY TOKENS "
                 "SEQUENCE bf16|float8\n");
    return 64;
  }
  const at::Device device(words[0] == "cuda" ? at::kCUDA : at::kCPU, words[0] == "cuda" ? 0 : -1);
  if (device.is_cuda() && !has_gpu()) {
    std::fprintf(stderr, "there is no GPU here\n");
    return 69;
  }
  auto number = [&](size_t i) { return static_cast<int64_t>(std::stoll(words[i])); };
  const int64_t dim = number(1), hidden = number(2), heads = number(3), kv_heads = number(4), layers = number(5);
  const int64_t vocabulary = number(6), tokens = number(7), length = number(8);
  const bool float8 = words[9] == "float8";
  const int64_t kv = dim / heads * kv_heads;
  double products = layer_seconds(device, tokens, dim + 2 * kv, dim, float8);  // q, k and v side by side
  products += layer_seconds(device, tokens, dim, dim, float8);
  products += layer_seconds(device, tokens, 2 * hidden, dim, float8);
  products += layer_seconds(device, tokens, dim, hidden, float8);
  products = products * static_cast<double>(layers) + layer_seconds(device, tokens, vocabulary, dim, false);
  nlohmann::json result;
  result["product_seconds"] = products;
  result["attention_seconds"] = nullptr;
  if (device.is_cuda()) {
    const AttentionShape shape{tokens / length, length, heads, kv_heads, dim / heads};
    const std::vector<KernelTiming> timings =
        time_kernels([&](AttentionKernel kernel) { return measure_kernel(kernel, shape, at::kBFloat16, device); });
    if (const std::optional<AttentionKernel> chosen = choose_kernel(timings)) {
      const auto own = std::find_if(timings.begin(), timings.end(),
                                    [&](const KernelTiming& timing) { return timing.kernel == *chosen; });
      result["attention_seconds"] = own->seconds * static_cast<double>(layers);
      result["attention_kernel"] = name(*chosen);
    }
  }
  const int64_t bytes = device.is_cuda() ? int64_t{2} << 30 : int64_t{64} << 20;
  const at::Tensor source = at::zeros({bytes}, at::TensorOptions(device).dtype(at::kByte));
  at::Tensor target = at::empty_like(source);
  result["copy_bytes_per_second"] =
      2.0 * static_cast<double>(bytes) / median_seconds(device, [&] { target.copy_(source); });
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) { return titan::run({words + 1, words + count}); }
