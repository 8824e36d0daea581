// How ranks exchange short messages about checkpoints: through the run's key-value store. No collective and no GPU is
// used, so the thread that writes a save may call it while training continues.
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

/// How the ranks of a run speak to each other about checkpoints: a few words, never a tensor.
class RankBarrier {
 public:
  virtual ~RankBarrier() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Everyone's message by rank, once all have come with theirs. All ranks call equally often. Throws what the way of
  /// communication throws when a rank does not come.
  virtual std::vector<std::string> exchange(std::string message) = 0;
};

/// Has `read` read what rank `rank` said in a meeting. Error(peer_failure) that names the rank where the words are no
/// JSON, or where `read` throws Error, nlohmann's exceptions or std::out_of_range.
void read_words(const std::string& words, size_t rank, const std::function<void(const nlohmann::json& said)>& read);

/// The meeting of a process that is alone.
std::unique_ptr<RankBarrier> make_lone_barrier();

/// What the storage or the files would not do; empty when `act` succeeded. A broken promise of this program is thrown
/// on.
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

/// How long a meeting waits for a rank, which may write or read for long.
struct BarrierWaits {
  /// A rank that does not come within this time is an Error(peer_failure).
  std::chrono::milliseconds limit;
  /// A rank that gives no sign of life for about this time ends the run (PatientWait); for one that lives, a line is
  /// told as often.
  std::chrono::milliseconds patience = limit;
  std::shared_ptr<WaitForGraph> waits = nullptr;  ///< where this rank notes whom it waits for; may be null
  std::function<void(const std::string& line)> tell = nullptr;  ///< called by the thread that waits; may be empty
};

/// `store`: used by this meeting alone, a clone where others use the same; `name` keeps its keys apart.
std::unique_ptr<RankBarrier> make_store_barrier(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, BarrierWaits waits);

}  // namespace titan
