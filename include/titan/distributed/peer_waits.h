// Whom a rank waits for at this moment, for when a rank hangs: the others wait for each other, and only who follows
// from waiter to waiter comes to the one that they all wait for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace titan {

/// Of one rank; may be used from any thread.
class PeerWaits {
 public:
  using Ranks = std::shared_ptr<const std::vector<int64_t>>;

  void begin(int64_t rank);
  void end(int64_t rank);
  /// For many ranks at once, the same object in both: costs no more than for one.
  void begin(const Ranks& ranks);
  void end(const Ranks& ranks);
  /// This rank has waited in vain: what is noted now stays, whatever else it lets go of on its way out.
  void keep();
  /// Ranks of the run, rising, each once.
  std::vector<int64_t> now() const;

 private:
  mutable std::mutex mutex_;
  bool kept_ = false;
  std::map<int64_t, int64_t> waiting_;  // how often, by rank
  std::map<Ranks, int64_t> together_;   // the same of many at once
};

/// What a rank says when it is asked whom it waits for.
struct WaitAnswer {
  int64_t rank;
  std::vector<int64_t> waits_for;  // empty: for nobody; it computes, reads or writes
};

/// Who holds up a run in which `reporter` waited in vain: found from waiter to waiter.
struct WaitEnd {
  int64_t rank = -1;  ///< -1: nobody is found; ranks wait in a circle, or `reporter` could not say for whom it waits
  bool answers = false;
};
/// `answers`: of all ranks that gave one. Who gave none is stopped or its host is. Of several at whom the waiting ends,
/// one without an answer comes first, then the lowest rank.
WaitEnd end_of_waits(const std::vector<WaitAnswer>& answers, int64_t reporter);

}  // namespace titan
