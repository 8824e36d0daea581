// The members of a group as ranks of the run, and a note of the ones that this rank waits for.
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

struct GroupMembers {
  std::string group;
  std::vector<int64_t> ranks;           // of the run, by rank of the group; empty: not known
  std::shared_ptr<WaitForGraph> waits;  // null: waits are not recorded

  /// `peer` of the group as a rank of the run; -1: not known.
  int64_t run_rank(int64_t peer) const { return ranks.empty() ? -1 : ranks[static_cast<size_t>(peer)]; }

  /// What `came` returns, which waits for `peers` of the group: whether they came. When they did not, or it throws, the
  /// note stays.
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

  /// All of them but `own` of the group, as ranks of the run, for `noted`; null: not known, or not recorded.
  WaitForGraph::Ranks others(int64_t own) const;
  /// For work that no host thread waits for: this rank waits for `ranks` from now on until `is_complete` has said so
  /// once. When it throws, the note stays.
  std::function<bool()> noted(WaitForGraph::Ranks ranks, std::function<bool()> is_complete) const;

  /// Ends a wait in vain: throws Error(peer_failure) that names group and peer.
  [[noreturn]] void fail_silent(int64_t peer, std::chrono::milliseconds timeout) const;
};

/// `memory`, with a note of every wait.
std::unique_ptr<PeerMemory> noting(std::unique_ptr<PeerMemory> memory, GroupMembers members);

// Our reductions in the words of LibTorch's process groups.

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
