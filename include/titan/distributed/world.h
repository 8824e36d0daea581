// Who this process is among the processes (ranks) of a run. Made once, by rendezvous or by nobody: a default World is a
// single process. Passed on by reference; it knows neither the mesh nor any process group.
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
  int64_t local_rank = 0;  // among the ranks of this host: which of its GPUs is this rank's
  /// The ranks of this host, rising, this one among them. They need not follow each other: mpirun --map-by node.
  std::vector<int64_t> host_ranks{0};
  /// Cores that this rank may count on: those it may run on, shared evenly with the ranks of its host that have the
  /// same ones. 0: it need not share.
  int64_t cores = 0;
  /// Keys that every rank sees, for making process groups and agreeing on things; null for a single process and for a
  /// dry run.
  c10::intrusive_ptr<c10d::Store> store;
  /// comm.mode = "fake_backend": rank `rank` of `size` is alone in this process, and communication does nothing.
  bool fake = false;
  /// What the rank was detected from, for the start line: "torchrun", "srun", …; empty for a single process.
  std::string launcher;

  /// Where this rank's groups note what they do; null: nowhere.
  std::shared_ptr<CollectiveTrace> trace = nullptr;
  /// Where this rank's groups note whom they wait for; null: nowhere.
  std::shared_ptr<WaitForGraph> waits = nullptr;
  /// To be told, on any thread, that a collective does not end which no host thread waits for: ends the run. May be
  /// empty.
  std::function<void(const std::string& text)> hung = nullptr;
  /// What is said when another thread ends this process; null: nothing.
  std::shared_ptr<FinalMessage> final_message = nullptr;

  bool is_distributed() const { return size > 1; }
  bool is_on_one_host() const { return static_cast<int64_t>(host_ranks.size()) == size; }
};

}  // namespace titan
