#include <iostream>

#include "titan/app/commands.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "titan/gpu/cuda.h"
#include "titan_commit.h"

namespace titan {
namespace {

/// 13020 → "13.2".
std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string cuda_text(const CudaState& state) {
  return fmt::format("{} (driver: {})", dotted(state.runtime),
                     state.driver > 0 ? "for CUDA " + dotted(state.driver) : "none here");
}

}  // namespace

int run_version(const Schema&, std::span<const std::string>) {
  const Cuda* const cuda = std::filesystem::exists(cuda_library_path()) ? find_cuda(/*without_driver=*/true) : nullptr;
  std::cout << fmt::format(
      "titan_train {}\n  commit    {}\n  LibTorch  {}, CPU operations for {}\n  CUDA      {}\n  NCCL      {}\n"
      "  kernels   {}\n",
      TITAN_VERSION, TITAN_COMMIT, TORCH_VERSION, at::get_cpu_capability(),
      cuda ? cuda_text(cuda->state()) : "none: no libtitan_cuda.so", cuda ? cuda->nccl_version() : "none",
      TITAN_KERNELS);
  return 0;
}

}  // namespace titan
