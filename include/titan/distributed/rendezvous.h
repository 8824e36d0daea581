// Rendezvous of the ranks of a run: connects them, checks that they agree (rank_check.h) and creates the store and the
// abort watcher. Rank 0 listens; the others connect, send their RankFacts and keep the connection open
// (abort_watcher.h). Does not use MPI.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/rank_check.h"
#include "titan/distributed/world.h"
#include "titan/job/launch_environment.h"

namespace titan {

/// Rank 0 has refused the run and reports why; this rank prints nothing.
class RefusedByRankZero : public Error {
 public:
  using Error::Error;
};

struct Rendezvous {
  World world;
  std::unique_ptr<AbortWatcher> watcher;  ///< null for a single process and a dry run
  std::vector<std::string> table;         ///< on rank 0 of several: one line per rank
  std::vector<std::string> warnings;      ///< on rank 0
};

/// Blocks until all ranks have joined. Throws Error(launcher) on every rank within about `timeout`: missing ranks (by
/// number), different world sizes, two processes with one rank or one GPU, different programs or configs, a port in
/// use. `facts`: of this process; rank and size are taken from `launch`. If they contain a problem, all ranks exit with
/// it within seconds, including those that join later. `final_message`: printed by the watcher when another rank's
/// failure ends this process; may be null.
Rendezvous join_ranks(const Launch& launch, RankFacts facts, std::chrono::seconds timeout,
                      AbortWatcher::PeerFailed peer_failed, std::shared_ptr<FinalMessage> final_message = nullptr);

// Mutual authentication of a connection with the run's secret, which is never sent: each side answers the other's nonce
// with an HMAC-SHA-1 over both nonces, the port and the caller's rank. The port prevents relaying an answer from a
// listener on another port.

/// HMAC-SHA-1 (RFC 2104) in hexadecimal digits.
std::string keyed_hash(std::string_view key, std::string_view text);

/// Authentication state of one connection, known to both sides.
struct Handshake {
  std::string secret;
  uint16_t port = 0;  // where rank 0 listens
  std::string zero_nonce{}, caller_nonce{};
  int64_t rank = 0;  // of the caller

  std::string zero_proof() const { return proof("rank 0"); }
  std::string caller_proof() const { return proof("caller"); }

 private:
  std::string proof(std::string_view side) const;
};

/// Constant-time comparison.
bool is_same_proof(std::string_view a, std::string_view b);

}  // namespace titan
