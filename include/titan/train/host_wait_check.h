// Checks that a step never makes the host wait (debug.sync_check). On a GPU, CUDA itself rejects calls that wait. On a
// CPU nothing waits, but the step calls the same operations: the check records those whose result the host reads, or
// whose shape depends on device values. So such a call is found without a GPU.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace titan {

class HostWaitCheck {
 public:
  /// If `on`, checks this thread's work on `device` from here on.
  HostWaitCheck(const at::Device& device, bool on);
  ~HostWaitCheck();
  HostWaitCheck(const HostWaitCheck&) = delete;
  HostWaitCheck& operator=(const HostWaitCheck&) = delete;

  /// Throws Error(bug) that names the operations that would make the host wait for a GPU. (On a GPU the call itself
  /// throws.)
  void finish();
  /// Operations so far that make the host wait on a GPU, without duplicates, in order.
  const std::vector<std::string>& found() const { return found_; }

 private:
  bool on_gpu_ = false;
  std::vector<std::string> found_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace titan
