// What the process knows of itself and its machine: memory in use, processor and host name, the wish to stop.
// Asked by the trainer for its start report, its console line and its loop. Only StopSignals changes anything, and it
// must: a signal handler has no other way to reach the loop. Knows nothing of devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace titan {

/// Resident memory of this process now, and its maximum so far, in bytes.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Memory of the machine, or of this process's control group where that is smaller.
int64_t total_memory_bytes();
std::string processor_name();
std::string host_name();

/// Starts this program afresh in this process, same command line, with `name`=`value` in its environment: for libraries
/// that read theirs while they are loaded. Returns only where that is not possible.
void restart_with(const std::string& name, const std::string& value);

/// Turns the first SIGINT or SIGTERM into a flag that the training loop looks at. When the loop has not ended 4 s after
/// a SIGINT (a person waits), or 25 s after a SIGTERM (a scheduler kills after 30), SIGALRM ends the process with a
/// line that says so; a SIGINT after the first signal ends it at once. One object lives in the main thread; handlers
/// are restored when it goes. They run on a stack of their own: matrix kernels of LibTorch's oneDNN let the stack
/// pointer point into their heap buffers, and a handler there would overwrite what lies below.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// 0, or the number of the signal that arrived.
  static int received();

 private:
  std::vector<char> stack_;
};

}  // namespace titan
