// The global ranks of a communicator's members. Records in the wait-for graph which of them this rank waits for.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/distributed/peer_memory.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

struct CommunicatorMembers {
  std::string communicator;
  std::vector<int64_t> ranks;           // global rank by communicator rank; empty: unknown
  std::shared_ptr<WaitForGraph> waits;  // null: waits are not recorded

  /// Global rank of the communicator's rank `peer`; -1: unknown.
  int64_t run_rank(int64_t peer) const { return ranks.empty() ? -1 : ranks[static_cast<size_t>(peer)]; }

  /// Calls `came`, which waits for `peers` of the communicator and returns whether they arrived; returns its result. If
  /// they did not arrive, or it throws, the recorded wait stays.
  template <class Came>
  bool wait_for(std::span<const int64_t> peers, const Came& came) const {
    if (!waits || ranks.empty()) return came();
    for (const int64_t peer : peers) waits->begin(run_rank(peer));
    bool result = false;
    try {
      result = came();
    } catch (...) {
      waits->keep();
      throw;
    }
    if (!result) waits->keep();
    for (const int64_t peer : peers) waits->end(run_rank(peer));
    return result;
  }
  template <class Came>
  bool wait_for(int64_t peer, const Came& came) const {
    return wait_for(std::span(&peer, 1), came);
  }

  /// Global ranks of all members except communicator rank `own`, for `noted`; null: unknown, or not recorded.
  WaitForGraph::Ranks others(int64_t own) const;
  /// For work that no host thread waits for: this rank counts as waiting for `ranks` until `is_complete` returns true.
  /// If it throws, the recorded wait stays.
  std::function<bool()> noted(WaitForGraph::Ranks ranks, std::function<bool()> is_complete) const;

  /// Ends a wait that timed out: throws Error(peer_failure) that names communicator and peer.
  [[noreturn]] void fail_silent(int64_t peer, std::chrono::milliseconds timeout) const;
};

/// Wraps `memory` to record every wait.
std::unique_ptr<PeerMemory> noting(std::unique_ptr<PeerMemory> memory, CommunicatorMembers members);

// Our reductions as those of LibTorch's process groups.

inline c10d::ReduceOp c10d_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return c10d::ReduceOp::SUM;
    case Reduction::max:
      return c10d::ReduceOp::MAX;
    case Reduction::min:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

}  // namespace titan
