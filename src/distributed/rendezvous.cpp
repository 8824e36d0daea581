#include "titan/distributed/rendezvous.h"

#include <c10/util/Logging.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ending.h"
#include "rank_hub.h"
#include "rank_link.h"
#include "titan/distributed/peer_waits.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
constexpr const char* kOwnHost = "127.0.0.1";
constexpr const char* kHubKey = "rank 0 listens on";

bool is_loopback(const std::string& host) { return host == kOwnHost || host == "localhost"; }

std::chrono::milliseconds left_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

/// Rank 0's listening socket, on the first free port.
Descriptor listen_at(const MeetingPoint& meeting) {
  if (meeting.kind == MeetingPoint::Kind::agent) return listen_on(is_loopback(meeting.host), 0);
  int reason = 0;
  for (const uint16_t port : meeting.ports) {
    if (Descriptor listener = listen_on(is_loopback(meeting.host), port)) return listener;
    reason = errno;
  }
  const bool one = meeting.ports.size() == 1;
  throw Error(
      ExitCode::launcher,
      fmt::format(
          "rank 0 cannot listen on {} {}: {}; {}", one ? "port" : "any port from",
          one ? std::to_string(meeting.ports[0]) : fmt::format("{} to {}", meeting.ports.front(), meeting.ports.back()),
          std::strerror(reason),
          reason == EADDRINUSE ? "end the program that has it (ss -ltnp shows it), or choose another port "
                                 "(MASTER_PORT or comm.master)"
                               : "choose another port (MASTER_PORT or comm.master)"));
}

StorePointer serve_store(const std::string& host, Deadline deadline, uint16_t& port) {
  Descriptor listener = listen_on(is_loopback(host), 0);
  if (!listener)
    throw Error(ExitCode::launcher, fmt::format("rank 0 cannot open a port for the store: {}", std::strerror(errno)));
  c10d::TCPStoreOptions options;
  options.port = port = port_of(listener);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = left_until(deadline);
  options.masterListenFd = listener.release();
  // This rank is a client, too, of its own store: whatever name the others have for this host.
  return c10::make_intrusive<c10d::TCPStore>(kOwnHost, options);
}

/// A client of the store at host:port; `whose`, for the message.
StorePointer reach_store(const std::string& host, uint16_t port, Deadline deadline, const std::string& whose) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = left_until(deadline);
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const c10::Error& error) {
    throw Error(ExitCode::launcher,
                fmt::format("the store of {} at {}:{} cannot be reached; see whether {} still runs, and "
                            "whether a firewall is between the hosts",
                            whose, host, port, whose));
  }
}

StorePointer agent_store(const Launch& launch, Deadline deadline) {
  const StorePointer store = reach_store(launch.meeting.host, launch.meeting.ports.at(0), deadline, launch.launcher);
  return c10::make_intrusive<c10d::PrefixStore>("titan, run " + launch.meeting.run, store);
}

/// Where the others read rank 0's port from the agent's store.
uint16_t read_hub_port(c10d::Store& store, const Launch& launch, Deadline deadline) {
  try {
    while (Clock::now() < deadline) {
      end_at_a_signal();
      if (store.check({kHubKey})) return static_cast<uint16_t>(std::stoi(store.get_to_str(kHubKey)));
      ::poll(nullptr, 0, kRetryMilliseconds);
    }
  } catch (const c10::Error&) {
    // The launcher has taken its store with it.
  }
  throw Error(ExitCode::launcher,
              fmt::format("rank 0 did not come within comm.init_timeout_seconds; see whether {} started it and what it "
                          "printed",
                          launch.launcher));
}

void take_place(const HostPlace& place, World& world) {
  world.local_rank = place.local_rank;
  world.host_ranks = place.host_ranks;
}

void meet_as_rank_zero(const Launch& launch, RankFacts facts, Deadline deadline, AbortWatcher::PeerFailed peer_failed,
                       Rendezvous& met) {
  Descriptor listener = listen_at(launch.meeting);
  const uint16_t hub_port = port_of(listener);
  auto hub = std::make_unique<RankHub>(std::move(listener), launch.meeting.run, std::move(facts),
                                       std::move(peer_failed), met.world.waits, met.world.last_words);
  uint16_t store_port = 0;
  const bool is_agents = launch.meeting.kind == MeetingPoint::Kind::agent;
  if (is_agents) {
    met.world.store = agent_store(launch, deadline);
    met.world.store->set(kHubKey, std::to_string(hub_port));
  }
  const RollCall& roll_call = hub->gather(deadline, is_agents ? "" : launch.meeting.host);
  if (!met.world.store) met.world.store = serve_store(launch.meeting.host, deadline, store_port);
  met.table = roll_call.table();
  met.warnings = roll_call.warnings();
  met.world.cores = roll_call.core_share(0);
  take_place(roll_call.place(0), met.world);
  hub->welcome(store_port);
  met.watcher = std::move(hub);
}

void meet_as_another(const Launch& launch, RankFacts facts, Deadline deadline, AbortWatcher::PeerFailed peer_failed,
                     Rendezvous& met) {
  auto link =
      std::make_unique<RankLink>(std::move(facts), std::move(peer_failed), met.world.waits, met.world.last_words);
  std::vector<uint16_t> ports = launch.meeting.ports;
  if (launch.meeting.kind == MeetingPoint::Kind::agent) {
    met.world.store = agent_store(launch, deadline);
    ports = {read_hub_port(*met.world.store, launch, deadline)};
  }
  link->call(launch.meeting.host, ports, launch.meeting.run, deadline);
  const Welcome welcome = link->join(deadline);
  if (!met.world.store) met.world.store = reach_store(launch.meeting.host, welcome.store_port, deadline, "rank 0");
  met.world.cores = welcome.cores;
  take_place(welcome.place, met.world);
  met.watcher = std::move(link);
}

/// The others are not left waiting for a rank that cannot take part. Throws the problem, or RefusedByRankZero when rank
/// 0 has heard it.
[[noreturn]] void say_problem(const Launch& launch, RankFacts facts, AbortWatcher::PeerFailed peer_failed) {
  const Error problem(static_cast<ExitCode>(facts.problem_code), facts.problem);
  const auto meet = launch.rank == 0 ? meet_as_rank_zero : meet_as_another;
  Rendezvous none;
  none.world.waits = std::make_shared<PeerWaits>();
  try {
    meet(launch, std::move(facts), Clock::now() + kProblemLimit, std::move(peer_failed), none);
  } catch (const RefusedByRankZero&) {
    throw;
  } catch (const std::exception&) {
    // Nobody has heard it.
  }
  throw problem;
}

/// The store's library reports every lost connection with a stack trace; what matters of it is said here in words.
void quiet_store_library() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

}  // namespace

Rendezvous meet_ranks(const Launch& launch, RankFacts facts, std::chrono::seconds timeout,
                      AbortWatcher::PeerFailed peer_failed, std::shared_ptr<LastWords> last_words) {
  Rendezvous met;
  met.world = {.rank = launch.rank,
               .size = launch.size,
               .local_rank = launch.local_rank.value_or(0),
               .store = {},
               .fake = launch.fake,
               .launcher = launch.launcher,
               .last_words = std::move(last_words)};
  if (launch.meeting.kind == MeetingPoint::Kind::nowhere) {
    if (!facts.problem.empty()) throw Error(static_cast<ExitCode>(facts.problem_code), facts.problem);
    return met;
  }
  quiet_store_library();
  facts.rank = launch.rank;
  facts.size = launch.size;
  facts.local_rank = launch.local_rank.value_or(-1);
  facts.local_size = launch.local_size.value_or(-1);
  if (!facts.problem.empty()) say_problem(launch, std::move(facts), std::move(peer_failed));
  met.world.waits = std::make_shared<PeerWaits>();
  const Deadline deadline = Clock::now() + timeout;
  const auto meet = launch.rank == 0 ? meet_as_rank_zero : meet_as_another;
  meet(launch, std::move(facts), deadline, std::move(peer_failed), met);
  met.world.store->setTimeout(timeout);
  return met;
}

}  // namespace titan
