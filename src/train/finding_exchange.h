// Short texts that ranks exchange about a failure that all of them have noticed, so that the message can name the rank
// that is at fault. Nothing is connected before the first call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "titan/checkpoint/store_barrier.h"

namespace titan {

struct Run;

class FindingExchange {
 public:
  /// `run` must outlive it.
  explicit FindingExchange(const Run& run) : run_(run) {}

  /// Collective: what rank 0 makes of the words of all ranks.
  std::string decide(const std::string& words, const RankBarrier::Decision& decision);
  /// Collective: the first name that each rank gives, if any: "layers.0.attention.wq.weight and 3 more on rank 2
  /// (node7)".
  std::string names_by_rank(const std::vector<std::string>& names);

 private:
  const Run& run_;
  std::unique_ptr<RankBarrier> barrier_;  // null: not used yet
};

}  // namespace titan
