// The rendezvous over channels: rank 0 gathers the other ranks, each of which finds rank 0 and joins. Both sides prove
// that they know the run's secret (Handshake) before either sends anything else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "channel.h"
#include "rank_messages.h"
#include "titan/base/error.h"
#include "titan/distributed/rendezvous.h"

namespace titan {

/// Of a rank that a signal stops while the ranks are gathering. Nothing is lost yet, so a request to save and end
/// (SIGUSR1) has what it asked for: the job can be queued again.
ExitCode code_of_stop();

struct GatheredRanks {
  RankCheck check;                                    // complete and settled
  std::vector<std::pair<int64_t, Channel>> channels;  // by rank, to all but rank 0; each waits for its Welcome
};

struct Meeting {
  std::string secret;  // that every rank must know
  std::string host;    // where the other ranks look for rank 0
  bool restarts;       // see RendezvousEndpoint
};

/// On rank 0: waits until every rank has joined and fits. `zero`: rank 0's own facts. Throws Error, after reporting it
/// to all ranks that joined: a rank that does not fit or has left, ranks missing at the deadline, a signal. With
/// `restarts`, a rank that leaves is missing again, and one that comes twice replaces the earlier one.
GatheredRanks gather_ranks(Descriptor listener, RankFacts zero, Deadline deadline, const Meeting& meeting);

struct JoinedRun {
  Channel channel;  // to rank 0
  Welcome welcome;
};

/// On every other rank: finds the rank 0 that knows the secret on the first of `ports` where it answers, and waits
/// until it has gathered all ranks. Throws Error(launcher) at the deadline, RefusedByRankZero, with the exit code of
/// this rank's own problem if it has one, or Error when rank 0 exited. With `restarts`, a rank 0 that exits is one of
/// an earlier attempt: the next one is looked for.
JoinedRun join_run(const std::vector<uint16_t>& ports, const RankFacts& facts, Deadline deadline,
                   const Meeting& meeting);

}  // namespace titan
