#include "titan/train/host_wait_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

/// These operations copy a value to the host, which waits for the device.
constexpr std::array<std::string_view, 10> kWaiting{
    "aten::item",     "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal",
    "aten::allclose", "aten::masked_select",       "aten::_unique2",   "aten::unique_consecutive",
    "aten::bincount", "aten::unique_dim"};
/// Boolean indexing calls it inside another operation, also on a GPU. Other nested operations depend on the device: the
/// CPU's float8 product reads its scales, the GPU's does not.
constexpr std::string_view kWaitingAnywhere = "aten::nonzero";

// LibTorch takes plain function pointers, so the state is thread-local: the list of the active check on this thread,
// and the nesting depth of operations.
thread_local std::vector<std::string>* noted = nullptr;
thread_local int depth = 0;

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  const bool waits =
      name == kWaitingAnywhere || (depth == 0 && std::find(kWaiting.begin(), kWaiting.end(), name) != kWaiting.end());
  if (waits && noted && std::find(noted->begin(), noted->end(), name) == noted->end()) noted->emplace_back(name);
  ++depth;
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext*) { --depth; }

}  // namespace

HostWaitCheck::HostWaitCheck(const at::Device& device, bool on) : on_gpu_(on && device.is_cuda()) {
  if (on_gpu_) cuda().refuse_waits(true);
  if (!on || on_gpu_) return;
  noted = &found_;
  depth = 0;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
}

HostWaitCheck::~HostWaitCheck() {
  if (on_gpu_) cuda().refuse_waits(false);
  if (handle_ == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle_);
  noted = nullptr;
}

void HostWaitCheck::finish() {
  if (found_.empty()) return;
  throw Error(
      ExitCode::bug,
      fmt::format("debug.sync_check: on a GPU this step would make the host wait in {}; leave the option out to "
                  "train anyway",
                  join(found_, ", ")));
}

}  // namespace titan
