#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <atomic>
#include <mutex>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

#ifdef TITAN_FOR_CUDA
constexpr bool kForCuda = true;
#else
constexpr bool kForCuda = false;
#endif

std::atomic<const Cuda*> opened{nullptr};

/// Does not unload the driver, because CUDA loads it next.
bool has_driver() { return ::dlopen("libcuda.so.1", RTLD_LAZY) != nullptr; }

const Cuda* open(const std::filesystem::path& library) {
  if (!std::filesystem::exists(library)) {
    throw Error(ExitCode::bad_config,
                fmt::format("there is an NVIDIA driver, and this build's {} is missing: build it (TITAN_CUDA=ON "
                            "scripts/train.sh does), or say training.device = \"cpu\"",
                            library.string()));
  }
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const parts = handle ? ::dlsym(handle, "titan_cuda") : nullptr;
  if (!parts) {
    throw Error(ExitCode::bad_config,
                fmt::format("the GPUs of this machine cannot be used: {}; install NVIDIA's libraries that torch {} "
                            "brings with it, or say training.device = \"cpu\"",
                            ::dlerror(), TORCH_VERSION));
  }
  return reinterpret_cast<const Cuda* (*)()>(parts)();
}

}  // namespace

std::filesystem::path cuda_library_path() { return beside_program("libtitan_cuda.so"); }

const Cuda* find_cuda(bool without_driver) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (opened || !kForCuda || !(without_driver || has_driver())) return opened;
  return opened = open(cuda_library_path());
}

const Cuda* opened_cuda() { return opened; }

const Cuda& cuda() {
  const Cuda* const found = opened;
  if (!found) throw InvariantError("internal error: a CUDA device, and CUDA was not opened");
  return *found;
}

bool has_gpu() { return find_cuda() && at::hasCUDA(); }

}  // namespace titan
