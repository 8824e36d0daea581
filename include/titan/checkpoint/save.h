// One save from beginning to end, on every rank: the stages of commit.h with the ranks' meetings between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "titan/checkpoint/commit.h"

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

/// A tensor of the state and this rank's box of it; undefined where the rank holds none.
struct StateTensor {
  PlacedTensor placed;
  at::Tensor local;
};

/// The rank's tensor that `write` writes, whole, wherever it lies.
at::Tensor local_part(const StateTensor& tensor, const PlannedWrite& write);
/// The same, contiguous and on the CPU.
at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write);

struct StateValue {
  std::string name;
  PickleRef value;
};

/// All that is saved: the same names in the same order on every rank. Only rank 0's values are written.
struct CheckpointState {
  std::vector<StateTensor> tensors;
  std::vector<StateValue> values;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // for the manifest

  std::vector<PlacedTensor> placed() const;
};

/// One rank's part of a save, ready to be written whenever.
struct SaveJob {
  SavePlace place;
  std::shared_ptr<const SavePlan> plan;
  std::vector<PlacedTensor> tensors;
  std::vector<SavedValue> values;  // rank 0's
  nlohmann::ordered_json facts;
  WrittenTensor written;  // called by the threads that write files, each index once
};

struct SaveOutcome {
  int64_t step = 0;
  bool committed = false;
  std::string problem;  // when it is not: which rank, what, why; the same on all ranks
  std::filesystem::path folder;
  int64_t bytes = 0;  // of all files
  double seconds = 0;

  std::string sentence() const;
};

/// Writes and commits; all ranks call it. A failure of the storage on any rank is the outcome of all; anything else
/// throws.
SaveOutcome save_together(Storage& storage, RankBarrier& meeting, const SaveJob& job);

// Pieces of work that do not wait for each other, on threads of their own.

/// Calls `act(0)` here and `act(1)` to `act(count - 1)` each on a thread of its own, and returns when all have ended.
/// What the first of them (by number) threw is thrown again. A thread that the system does not give is done without.
void side_by_side(size_t count, const std::function<void(size_t)>& act);

}  // namespace titan
