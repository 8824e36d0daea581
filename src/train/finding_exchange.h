// Short texts that ranks exchange about a failure that all of them have noticed, so that the message can name the rank
// that is at fault. Nothing is connected before the first call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "disagreement.h"
#include "titan/checkpoint/store_barrier.h"

namespace titan {

struct Run;

class FindingExchange {
 public:
  /// `run` must outlive it.
  explicit FindingExchange(const Run& run) : run_(run) {}

  /// Collective: what rank 0 makes of the words of all ranks.
  std::string decide(const std::string& words, const RankBarrier::Decision& decision);
  /// Collective: NamedRanks::text, from the names that each rank gives, if any; it has the first one of each rank. Rank
  /// 0 calls `record`, if given, before it answers: the first rank that fails ends the others.
  std::string names_by_rank(const std::vector<std::string>& names,
                            const std::function<void(const NamedRanks&)>& record = {});

 private:
  const Run& run_;
  std::unique_ptr<RankBarrier> barrier_;  // null: not used yet
};

/// Rank 0: writes disagreement.json beside the run's files, so that the next start trusts no checkpoint after
/// `last_agreeing`. Without the file the run still ends with its code and its message; then warns.
void record_finding(const Run& run, int64_t step, int64_t last_agreeing, const NamedRanks& named);

}  // namespace titan
