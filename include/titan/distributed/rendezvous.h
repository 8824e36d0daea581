// The ranks of a run find each other, make sure that they belong together, and get a store and a watcher.
// Rank 0 listens and greets; the others call, report their facts and keep the line (abort_watcher.h). No MPI is used.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/launch_environment.h"
#include "titan/distributed/roll_call.h"
#include "titan/distributed/world.h"

namespace titan {

/// Rank 0 has refused the run and tells the user; this rank has nothing to add.
class RefusedByRankZero : public Error {
 public:
  using Error::Error;
};

struct Rendezvous {
  World world;
  std::unique_ptr<AbortWatcher> watcher;  ///< null for a single process and a dry run
  std::vector<std::string> table;         ///< on rank 0 of several: who is there, a line each
  std::vector<std::string> warnings;      ///< on rank 0
};

/// Blocks until all ranks are there. Throws Error(launcher) within about `timeout`, on every rank: ranks that did not
/// come (named), another world size, two processes of one rank or on one GPU, another program or config, a taken port.
/// `facts` are this process's; its rank and size are taken from `launch`. When they hold a problem, all ranks end with
/// it within seconds, those included that are still on their way. `last_words`: what the watcher has said as soon as it
/// knows that another rank's failure ends this one; null: nothing.
Rendezvous meet_ranks(const Launch& launch, RankFacts facts, std::chrono::seconds timeout,
                      AbortWatcher::PeerFailed peer_failed, std::shared_ptr<LastWords> last_words = nullptr);

}  // namespace titan
