// A barrier of all ranks where rank 0 decides on short messages about checkpoints, through the run's key-value store.
// It uses no collective and no GPU, so the writer thread of a save may call it while training continues. Every rank
// gets rank 0's answer and never the messages of the others: those would be as many bytes as the square of the number
// of ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

/// Short texts of the ranks; never tensors. All calls are collective.
class RankBarrier {
 public:
  /// Computes rank 0's answer from the messages of all ranks, by rank.
  using Decision = std::function<std::string(const std::vector<std::string>& messages)>;

  virtual ~RankBarrier() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Every rank sends `message`; rank 0 calls `decide` with those of all, and every rank returns its result, which
  /// should not grow with the number of ranks. Throws Error(peer_failure) if a rank does not arrive. What `decide`
  /// throws ends rank 0, and so the run.
  virtual std::string decide(std::string message, const Decision& decide) = 0;

  /// Every rank returns rank 0's message.
  std::string tell(std::string message);
  /// Rank 0 returns the messages of all ranks, by rank; the others return nothing.
  std::vector<std::string> gather(std::string message);
  /// Returns once every rank has arrived.
  void wait_for_all() { tell({}); }
};

/// Parses the message of rank `rank` as JSON and passes it to `read`. Throws Error(peer_failure) naming the rank if it
/// is not JSON, or if `read` throws Error, an nlohmann exception or std::out_of_range.
void read_words(const std::string& words, size_t rank, const std::function<void(const nlohmann::json& said)>& read);

/// The barrier of a single process.
std::unique_ptr<RankBarrier> make_lone_barrier();

/// The message of the Error that `act` throws, to send to the other ranks; empty if it succeeds. InvariantError is not
/// caught.
template <class Act>
std::string problem_of(const Act& act) {
  try {
    act();
    return {};
  } catch (const InvariantError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Timeouts of a barrier. A rank may write or read for a long time before it arrives.
struct BarrierOptions {
  /// Error(peer_failure) if a rank does not arrive within this time.
  std::chrono::milliseconds timeout;
  /// A rank that does not respond for about this time ends the run (BarrierWait). While the rank responds, `report` is
  /// called at this interval.
  std::chrono::milliseconds response_timeout = timeout;
  std::shared_ptr<WaitForGraph> waits = nullptr;  ///< records which rank this one waits for; may be null
  std::function<void(const std::string& line)> report = nullptr;  ///< called by the waiting thread; may be empty
};

/// `store`: used only by this barrier; pass a clone if others use the same. `name`: prefix of its keys.
std::unique_ptr<RankBarrier> make_store_barrier(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, BarrierOptions options);

}  // namespace titan
