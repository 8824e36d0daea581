// The rank of this process in a run, and what it shares with the other ranks. Created once by the rendezvous; a default
// World is a single process. Passed by reference; does not depend on the mesh or communicators.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace titan {

class CollectiveTrace;
class FinalMessage;
class WaitForGraph;

struct World {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;  // among the ranks of this host; selects the GPU
  /// The ranks of this host including this one, ascending, not always consecutive (mpirun --map-by node).
  std::vector<int64_t> host_ranks{0};
  /// Cores available to this rank, of its affinity set and CPU quota (RankCheck::core_share). 0: not shared.
  int64_t cores = 0;
  /// Key-value store shared by all ranks; null for a single process and for a dry run.
  c10::intrusive_ptr<c10d::Store> store;
  /// comm.mode = "fake_backend": rank `rank` of `size` is alone in this process, and communication does nothing.
  bool fake = false;
  /// The detected launcher, for the start line: "torchrun", "srun", …; empty for a single process.
  std::string launcher;

  /// Records the collectives of this rank's communicators; may be null.
  std::shared_ptr<CollectiveTrace> trace = nullptr;
  /// Records which ranks this rank is blocked on; may be null.
  std::shared_ptr<WaitForGraph> waits = nullptr;
  /// Ends the run. Called on any thread when a collective that no host thread waits for times out. May be empty.
  std::function<void(const std::string& text)> hung = nullptr;
  /// Printed when another thread ends this process; may be null.
  std::shared_ptr<FinalMessage> final_message = nullptr;

  bool is_distributed() const { return size > 1; }
  bool is_on_one_host() const { return static_cast<int64_t>(host_ranks.size()) == size; }
};

}  // namespace titan
