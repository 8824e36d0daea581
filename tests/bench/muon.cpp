// Steps of MuonOptimizer on matrices of given shapes, timed, with the statistics of updates that every run computes.
// scripts/bench/muon.py runs it beside torch.optim.Muon.
//   bench_muon SHAPES DTYPE THREADS STEPS       SHAPES: 256x256,512x256,…   DTYPE: float32 or bfloat16, of the
//   iteration
// Prints the median seconds of a step, after one that is not timed.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "titan/base/text.h"
#include "titan/config/schema.h"
#include "titan/optimize/muon.h"

namespace titan {
namespace {

constexpr size_t kKinds = 7;  // of matrices in a block of Llama

double seconds_of_step(const std::string& shapes, const std::string& dtype, int64_t steps) {
  const at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> parameters;
  ParameterGroup all;
  for (const std::string& word : split(shapes, ',')) {
    const std::vector<std::string> sizes = split(word, 'x');
    const std::vector<int64_t> shape{std::stoll(sizes.at(0)), std::stoll(sizes.at(1))};
    const std::string name = fmt::format("layers.{}.w{}", owned.size() / kKinds, owned.size() % kKinds);
    owned.push_back(std::make_unique<Parameter>(ParameterSpec{name, shape, {}}));
    owned.back()->master = at::randn(shape, generator, at::TensorOptions(at::kFloat)).mul_(0.02);
    owned.back()->gradient_shard = at::randn(shape, generator, at::TensorOptions(at::kFloat));
    all.members.push_back(parameters.size());
    parameters.push_back(owned.back().get());
  }
  OptimizerSection options = default_config().optimizer;
  options.name = OptimizerKind::muon;
  options.muon.dtype = dtype == "float32" ? ElementType::float32 : ElementType::bfloat16;
  MuonStatistics statistics;
  for (size_t kind = 0; kind < kKinds; ++kind) statistics.of_kind[fmt::format("w{}", kind)] = statistics.numel++;
  statistics.matrices = parameters.size();
  MuonOptimizer optimizer(parameters, {all}, std::vector<bool>(parameters.size(), true), options, /*rounding_seed=*/0,
                          /*offload=*/nullptr, std::move(statistics));
  const StepControl control{at::ones({}, at::kDouble), at::ones({}, at::kDouble), at::zeros({})};
  std::vector<double> seconds;
  for (int64_t step = 0; step <= steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.step(step + 1, options.lr, control);
    if (step > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + steps / 2, seconds.end());
  return seconds[static_cast<size_t>(steps / 2)];
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "bench_muon SHAPES DTYPE THREADS STEPS\n"), 64;
  // As titan_train does (keep_freed_memory).
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(std::stoi(argv[3]));
  std::printf("%.9f\n", titan::seconds_of_step(argv[1], argv[2], std::stoll(argv[4])));
  return 0;
}
