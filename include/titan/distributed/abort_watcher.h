// Ends a run with several ranks: when one rank fails or dies, the others exit within seconds, even while blocked in a
// collective. Every rank keeps one connection to rank 0, watched by a separate thread; the kernel closes the connection
// when the process dies. Created by the rendezvous; does not depend on tensors or communicators.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan {

/// Messages of the control plane: the rendezvous, the store, failures and health checks. No tensors.
struct ControlTraffic {
  int64_t messages_sent = 0, bytes_sent = 0;
  int64_t messages_received = 0, bytes_received = 0;

  ControlTraffic& operator+=(const ControlTraffic& other);
  ControlTraffic operator-(const ControlTraffic& before) const;
};

class AbortWatcher {
 public:
  /// Called on the watcher's thread, right before it ends the process: prints the last message. `aloud`: this rank
  /// reports the failure to the user; the other ranks only log it.
  using PeerFailed = std::function<void(const std::string& text, bool aloud)>;

  virtual ~AbortWatcher() = default;

  /// This rank has failed and will exit with `code`: makes the other ranks exit. Call it before tearing down anything
  /// that may block on them; if the process is still running a few seconds later, the watcher prints `text` and ends
  /// it. Code 74 (peer failure) is usually a collective's error after another rank died: waits some seconds for the
  /// original failure and, if one arrives, ends the process with it (this call then does not return). Returns true if
  /// rank 0 has received the failure and reports it, so that a failure of all ranks is reported once.
  virtual bool fail(int code, const std::string& text) = 0;

  /// This rank has finished. Waits for all ranks, so that it is not taken for dead and rank 0's store outlives its
  /// clients. Returns the ranks that had not finished within `limit` (rank 0 sees all ranks, the others only rank 0).
  virtual std::vector<int64_t> leave(std::chrono::seconds limit) = 0;

  /// What this rank has sent and received so far, on rank 0 to and from all others. Callable by the main thread while
  /// the ranks send nothing; a count that is taken while they do may miss the latest messages.
  virtual ControlTraffic traffic() const = 0;
};

}  // namespace titan
