#include "titan/distributed/rendezvous.h"

#include <c10/util/Logging.h>
#include <c10/util/hash.h>
#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

#include "coordinator.h"
#include "coordinator_client.h"
#include "gather.h"
#include "titan/base/process.h"
#include "titan/base/stop_signals.h"
#include "titan/base/text.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// Where rank 0 listens: on a loopback address when no rank can be on another host, else on every address.
std::string listening_address(const Launch& launch) {
  const std::string& host = launch.rendezvous.host;
  const std::string loopback = loopback_address_of(host);
  // Any other name may resolve to another address on other hosts: Debian gives the host's own name 127.0.1.1.
  const bool is_same_everywhere = host == loopback || host == "localhost";
  return is_same_everywhere || launch.local_size == launch.size ? loopback : "";
}

/// Between two tries to listen on a port that an earlier attempt's rank 0 holds.
constexpr std::chrono::milliseconds kPortRetry{100};

/// Rank 0's listening socket, on the first free port.
Descriptor listen_at(const Launch& launch, Deadline deadline) {
  const RendezvousEndpoint& rendezvous = launch.rendezvous;
  const std::string address = listening_address(launch);
  int reason = 0;
  do {
    for (const uint16_t port : rendezvous.ports) {
      if (Descriptor listener = listen_on(address, port)) return listener;
      reason = errno;
    }
    if (!rendezvous.restarts || reason != EADDRINUSE) break;
    if (StopSignals::received() != 0) {
      throw Error(code_of_stop(), "stopped by a signal while rank 0 waited for its port");
    }
    std::this_thread::sleep_for(kPortRetry);
  } while (Clock::now() < deadline);
  const bool one = rendezvous.ports.size() == 1;
  throw Error(
      ExitCode::launcher,
      fmt::format("rank 0 cannot listen on {} {}: {}; {}", one ? "port" : "any port from",
                  one ? std::to_string(rendezvous.ports[0])
                      : fmt::format("{} to {}", rendezvous.ports.front(), rendezvous.ports.back()),
                  std::strerror(reason),
                  reason == EADDRINUSE ? "end the program that has it (ss -ltnp shows it), or choose another port "
                                         "(MASTER_PORT or comm.master)"
                                       : "choose another port (MASTER_PORT or comm.master)"));
}

/// Distinguishes the run from others with the same secret.
std::string key_of(const RendezvousEndpoint& rendezvous) { return rendezvous.secret + "\n" + rendezvous.run; }

void take_place(const HostPlace& place, World& world) {
  world.local_rank = place.local_rank;
  world.host_ranks = place.host_ranks;
}

/// The others may look for rank 0 in vain, until their timeout: says so before they do.
void warn_of_another_host(const std::string& host) {
  if (names_this_machine(host)) return;
  std::cerr << fmt::format(
                   "warning: rank 0 is on {}, and {} is no address of that host: ranks that look for rank 0 there "
                   "find it only if the network leads them here; see MASTER_ADDR or comm.master\n",
                   host_name(), printable(host))
            << std::flush;
}

void host_rendezvous(const Launch& launch, RankFacts facts, Deadline deadline, AbortWatcher::PeerFailed peer_failed,
                     Rendezvous& joined) {
  warn_of_another_host(launch.rendezvous.host);
  GatheredRanks ranks = gather_ranks(listen_at(launch, deadline), std::move(facts), deadline,
                                     {key_of(launch.rendezvous), launch.rendezvous.host, launch.rendezvous.restarts});
  joined.table = ranks.check.table();
  joined.warnings = ranks.check.warnings();
  joined.world.cores = ranks.check.core_share(0);
  take_place(ranks.check.place(0), joined.world);
  auto coordinator = std::make_unique<Coordinator>(std::move(ranks), std::move(peer_failed), joined.world.waits,
                                                   joined.world.final_message);
  joined.world.store = coordinator->store();
  joined.watcher = std::move(coordinator);
}

void join_rendezvous(const Launch& launch, RankFacts facts, Deadline deadline, AbortWatcher::PeerFailed peer_failed,
                     Rendezvous& joined) {
  const RendezvousEndpoint& rendezvous = launch.rendezvous;
  JoinedRun run =
      join_run(rendezvous.ports, facts, deadline, {key_of(rendezvous), rendezvous.host, rendezvous.restarts});
  joined.world.cores = run.welcome.cores;
  take_place(run.welcome.place, joined.world);
  auto client = std::make_unique<CoordinatorClient>(launch.rank, std::move(run), std::move(peer_failed),
                                                    joined.world.waits, joined.world.final_message);
  joined.world.store = client->store();
  joined.watcher = std::move(client);
}

/// How long a rank that cannot take part tries to reach rank 0 to report why.
constexpr std::chrono::seconds kProblemLimit{8};

/// Joins only to report the problem, so that the other ranks do not wait for this one. Throws the problem, or
/// RefusedByRankZero if rank 0 has received it.
[[noreturn]] void report_problem(const Launch& launch, RankFacts facts, AbortWatcher::PeerFailed peer_failed) {
  const Error problem(static_cast<ExitCode>(facts.problem_code), facts.problem);
  const auto host_or_join = launch.rank == 0 ? host_rendezvous : join_rendezvous;
  Rendezvous none;
  none.world.waits = std::make_shared<WaitForGraph>();
  try {
    host_or_join(launch, std::move(facts), Clock::now() + kProblemLimit, std::move(peer_failed), none);
  } catch (const RefusedByRankZero&) {
    throw;
  } catch (const std::exception&) {
    // No rank has received it; the problem itself, thrown below, says more than that.
  }
  throw problem;
}

/// c10d reports every lost connection with a stack trace; the abort watcher reports which rank failed.
void quiet_library() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

}  // namespace

Rendezvous join_ranks(const Launch& launch, RankFacts facts, std::chrono::seconds timeout,
                      AbortWatcher::PeerFailed peer_failed, std::shared_ptr<FinalMessage> final_message) {
  Rendezvous joined;
  joined.world = {.rank = launch.rank,
                  .size = launch.size,
                  .local_rank = launch.local_rank.value_or(0),
                  .store = {},
                  .fake = launch.fake,
                  .launcher = launch.launcher,
                  .final_message = std::move(final_message)};
  if (launch.rendezvous.kind == RendezvousEndpoint::Kind::nowhere) {
    if (!facts.problem.empty()) throw Error(static_cast<ExitCode>(facts.problem_code), facts.problem);
    return joined;
  }
  quiet_library();
  facts.rank = launch.rank;
  facts.size = launch.size;
  facts.local_rank = launch.local_rank.value_or(-1);
  facts.local_size = launch.local_size.value_or(-1);
  if (!facts.problem.empty()) report_problem(launch, std::move(facts), std::move(peer_failed));
  joined.world.waits = std::make_shared<WaitForGraph>();
  const Deadline deadline = Clock::now() + timeout;
  const auto host_or_join = launch.rank == 0 ? host_rendezvous : join_rendezvous;
  host_or_join(launch, std::move(facts), deadline, std::move(peer_failed), joined);
  joined.world.store->setTimeout(timeout);
  return joined;
}

namespace {

constexpr size_t kBlock = 64;  // bytes; HMAC pads its key to a block of SHA-1

std::string sha1_bytes(const std::string& text) {
  const std::string digits = c10::sha1(text).str();
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(digits.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

}  // namespace

std::string keyed_hash(std::string_view key, std::string_view text) {
  std::string padded = key.size() > kBlock ? sha1_bytes(std::string(key)) : std::string(key);
  padded.resize(kBlock);
  std::string inner = padded, outer = padded;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  std::string digits;
  for (const char c : sha1_bytes(outer + sha1_bytes(inner.append(text)))) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return digits;
}

std::string Handshake::proof(std::string_view side) const {
  return keyed_hash(secret, fmt::format("titan {} {} {} {} {}", side, port, rank, zero_nonce, caller_nonce));
}

bool is_same_proof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
  return differs == 0;
}

}  // namespace titan
