// The end of a run with several ranks: when one fails or dies, the others end within seconds, even while they hang in a
// collective. Every rank keeps one connection to rank 0, which a thread of its own watches; the kernel closes it when a
// process dies, however it dies. Made by the rendezvous; knows neither tensors nor process groups.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace titan {

class AbortWatcher {
 public:
  /// Called on the watcher's thread, right before it ends the process with exit code 74. `aloud`: this rank is the one
  /// to tell the user; the others only note it in their logs.
  using PeerFailed = std::function<void(const std::string& text, bool aloud)>;

  virtual ~AbortWatcher() = default;

  /// This rank has failed and will end with `code`: makes the others end. To be called before anything that may wait
  /// for them is torn down; when the process has not ended a few seconds later, the watcher prints `text` and ends it.
  /// With code 74, a failed peer, which is usually what a collective says after another rank died: waits some seconds
  /// for the true cause, and when there is one, the process ends with that (this call does not return then).
  /// Returns whether rank 0 has heard it and tells the user, so that this rank need not: a failure that all ranks have
  /// is told once.
  virtual bool fail(int code, const std::string& text) = 0;

  /// This rank is done. Waits until all are, so that nobody takes it for dead and rank 0's store outlives its users.
  /// Returns the ranks that were not done at the limit (rank 0 knows them all, the others only of rank 0).
  virtual std::vector<int64_t> leave(std::chrono::seconds limit) = 0;
};

}  // namespace titan
