#include "titan/train/host_wait_check.h"

#include <fmt/format.h>
#ifdef TITAN_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <array>
#include <string_view>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Their CUDA versions copy to the host and wait for it: numbers that the host reads, and shapes made of numbers.
/// Boolean indices go through nonzero, item() and allclose through _local_scalar_dense.
constexpr std::array<std::string_view, 10> kWaiting{"aten::_local_scalar_dense",
                                                    "aten::nonzero",
                                                    "aten::masked_select",
                                                    "aten::equal",
                                                    "aten::_unique2",
                                                    "aten::unique_dim",
                                                    "aten::unique_consecutive",
                                                    "aten::repeat_interleave",
                                                    "aten::bincount",
                                                    "aten::histc"};

// at::addThreadLocalCallback takes plain functions: the list of the check that this thread is in.
thread_local std::vector<std::string>* noted = nullptr;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  const bool waits = std::find(kWaiting.begin(), kWaiting.end(), name) != kWaiting.end();
  if (waits && noted && std::find(noted->begin(), noted->end(), name) == noted->end()) noted->emplace_back(name);
  return nullptr;
}

}  // namespace

HostWaitCheck::HostWaitCheck(const at::Device& device, bool on) : on_gpu_(on && device.is_cuda()) {
#ifdef TITAN_WITH_CUDA
  if (on_gpu_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
#endif
  if (!on || on_gpu_) return;
  noted = &found_;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
}

HostWaitCheck::~HostWaitCheck() {
#ifdef TITAN_WITH_CUDA
  if (on_gpu_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
#endif
  if (handle_ == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle_);
  noted = nullptr;
}

void HostWaitCheck::finish() {
  if (found_.empty()) return;
  throw Error(
      ExitCode::bug,
      fmt::format("debug.sync_check: on a GPU this step would make the host wait in {}; leave the option out to "
                  "train all the same",
                  join(found_, ", ")));
}

}  // namespace titan
