#include "titan/app/version.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>
#ifdef TITAN_WITH_CUDA
#include <cuda_runtime_api.h>

#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#endif

#include "titan_commit.h"

namespace titan {
namespace {

#ifdef TITAN_WITH_CUDA
/// 13020 → "13.2".
std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string cuda_text() {
  int runtime = 0, driver = 0;
  if (::cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  const bool has_driver = ::cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return fmt::format("{} (driver: {})", dotted(runtime), has_driver ? "for CUDA " + dotted(driver) : "none here");
}
std::string nccl_text() { return c10d::getNcclVersion(); }
#else
std::string cuda_text() { return "none: built for the CPU only"; }
std::string nccl_text() { return "none"; }
#endif

}  // namespace

std::string version_text() {
  return fmt::format(
      "titan_train {}\n  commit    {}\n  LibTorch  {}, CPU operations for {}\n  CUDA      {}\n  NCCL      {}\n"
      "  kernels   {}\n",
      TITAN_VERSION, TITAN_COMMIT, TORCH_VERSION, at::get_cpu_capability(), cuda_text(), nccl_text(), TITAN_KERNELS);
}

std::string short_version() { return fmt::format("{} ({})", TITAN_VERSION, TITAN_COMMIT); }

}  // namespace titan
