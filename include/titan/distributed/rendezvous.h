// The ranks of a run find each other, make sure that they belong together, and get a store and a watcher.
// Rank 0 listens and greets; the others call, report their facts and keep the line (abort_watcher.h). No MPI is used.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/launch_environment.h"
#include "titan/distributed/rank_check.h"
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
/// it within seconds, those included that are still on their way. `final_message`: what the watcher has said as soon as
/// it knows that another rank's failure ends this one; null: nothing.
Rendezvous meet_ranks(const Launch& launch, RankFacts facts, std::chrono::seconds timeout,
                      AbortWatcher::PeerFailed peer_failed, std::shared_ptr<FinalMessage> final_message = nullptr);

// How two ends of a connection prove to each other that they know the run's secret, without sending it: each answers
// the other's random number with a MAC (HMAC-SHA-1) over both numbers, the port and the caller's rank. A program that
// listens on another port of the run cannot pass such answers on.

/// HMAC-SHA-1 (RFC 2104) in hexadecimal digits.
std::string keyed_hash(std::string_view key, std::string_view text);

/// What both ends know of one connection.
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

/// Compares all characters, so that the time tells nothing.
bool is_same_proof(std::string_view a, std::string_view b);

}  // namespace titan
