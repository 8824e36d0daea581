// The calls that one rank makes in a run, in order: units forward and backward, collectives and their waits. With
// TITAN_RECORD_CALLS=FOLDER every run of train_ranks() writes them there, with the bits of its results behind them, one
// file a rank: a record made before a change and one made after it are compared with diff -r.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <vector>

#include "ranks.h"

namespace titan {

class RecordedCalls {
 public:
  /// Records what this thread does for as long as it lives; nothing without TITAN_RECORD_CALLS.
  RecordedCalls();
  ~RecordedCalls();
  RecordedCalls(const RecordedCalls&) = delete;
  RecordedCalls& operator=(const RecordedCalls&) = delete;

  /// Puts a communicator that records its calls in front of each of `communicators`.
  void listen_to(MeshCommunicators& communicators);
  /// Writes the calls and the bits of `result` to a file of this test, row and rank.
  void write(const LayoutRow& row, int64_t rank, const RankResult& result) const;

 private:
  std::shared_ptr<std::vector<std::string>> lines_;  // null: nothing is recorded
  at::CallbackHandle ranges_ = 0;
};

}  // namespace titan
