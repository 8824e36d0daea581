// Proof that a step makes the host wait for nothing (debug.sync_check). On a GPU CUDA itself refuses calls that wait.
// On a CPU nothing has to be waited for, but the step calls the same operations: those whose result the host reads, or
// whose shape depends on numbers of the device, are noted, so that one that slips into a step is found without a GPU.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

/// Throws Error(bad_config) for a check on a GPU of steps in which the host waits by design, but for the one wait of an
/// optimizer on the host (WAIT_HOST), which is let through: LibTorch, which refuses, has no part in it.
void refuse_waits_by_design(const JobConfig& config, const at::Device& device);

class HostWaitCheck {
 public:
  /// Watches this thread's work on `device` from here on, when `on`.
  HostWaitCheck(const at::Device& device, bool on);
  ~HostWaitCheck();
  HostWaitCheck(const HostWaitCheck&) = delete;
  HostWaitCheck& operator=(const HostWaitCheck&) = delete;

  /// Throws Error(bug) that names what would have made the host wait for a GPU. (On a GPU the call itself throws.)
  void finish();
  /// Operations that on a GPU make the host wait, so far, each once, in order.
  const std::vector<std::string>& found() const { return found_; }

 private:
  bool on_gpu_ = false;
  std::vector<std::string> found_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace titan
