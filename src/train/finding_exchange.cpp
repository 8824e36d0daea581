#include "finding_exchange.h"

#include "titan/train/run.h"

namespace titan {

std::string FindingExchange::decide(const std::string& words, const RankBarrier::Decision& decision) {
  const World& world = run_.world;
  if (!barrier_ && !world.is_distributed()) barrier_ = make_lone_barrier();
  if (!barrier_) {
    const std::chrono::seconds timeout(run_.config.comm.train_timeout_seconds);
    barrier_ =
        make_store_barrier(world.store->clone(), "findings", world.rank, world.size,
                           {.timeout = timeout, .response_timeout = timeout, .waits = world.waits, .report = {}});
  }
  return barrier_->decide(words, decision);
}

}  // namespace titan
