// Ranks without a device that have a real control plane: rendezvous, store, barriers. For tests and benchmarks that
// count what it sends.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "titan/checkpoint/store_barrier.h"
#include "titan/distributed/rendezvous.h"

namespace titan {

/// Hosts are simulated: as many ranks on each as a machine has GPUs.
inline constexpr int64_t kRanksOfHost = 8;

struct ControlRank {
  Rendezvous joined;
  std::unique_ptr<RankBarrier> barrier;
};

/// What a rank of a cluster reports. `config`: as long as a resolved config.
inline RankFacts control_facts(int64_t rank, const std::string& config) {
  RankFacts facts;
  facts.host = "host-" + std::to_string(rank / kRanksOfHost);
  facts.machine = std::string(32, 'm');
  facts.process = 10000;
  facts.device = "cpu";
  facts.program = std::string(32, 'p');
  facts.config = config;
  for (int core = 0; core < 96; ++core) facts.cores.push_back(core);
  facts.host_cores = 96;
  return facts;
}

/// Joins the run at 127.0.0.1 on one of `ports`. Blocks until all ranks have joined.
inline ControlRank join_control_plane(int64_t rank, int64_t size, const std::vector<uint16_t>& ports,
                                      const std::string& config, std::chrono::seconds timeout) {
  Launch launch{.launcher = "test", .rank = rank, .size = size};
  launch.rendezvous = {RendezvousEndpoint::Kind::rank_zero, "127.0.0.1", ports, "control plane", "secret"};
  ControlRank joined{join_ranks(launch, control_facts(rank, config), timeout, [](const std::string&, bool) {}),
                     nullptr};
  const World& world = joined.joined.world;
  joined.barrier = make_store_barrier(world.store->clone(), "checkpoints", rank, size,
                                      {.timeout = timeout, .response_timeout = timeout, .waits = world.waits});
  return joined;
}

}  // namespace titan
