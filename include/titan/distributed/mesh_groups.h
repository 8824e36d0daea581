// The process groups of one rank: which axes of the mesh talk to each other about what. Made once, in one order on all
// ranks; groups of one rank do not exist.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "titan/distributed/backends.h"
#include "titan/distributed/communicator.h"
#include "titan/distributed/device_mesh.h"
#include "titan/distributed/peer_memory.h"
#include "titan/distributed/world.h"

namespace titan {

/// Null where the group would have one member. Axes in docs/distributed.md.
struct MeshGroups {
  std::shared_ptr<Communicator> gather;     // dp_shard × cp: shards of weights
  std::shared_ptr<Communicator> scatter;    // the same ranks: gradients, so that both directions are under way at once
  std::shared_ptr<Communicator> replicate;  // dp_replicate
  std::shared_ptr<Communicator> tensor;     // tp
  std::shared_ptr<Communicator> context;    // cp
  std::shared_ptr<Communicator> loss;       // dp_replicate × dp_shard × cp: ranks that read different tokens
  std::shared_ptr<Communicator> model;      // pp × dp_shard × cp × tp: ranks that hold one copy of the model
  std::shared_ptr<Communicator> world;
  /// Memory that the ranks of `tensor` share, `capacity` bytes each; empty where there is none to be had. All of them
  /// call it alike.
  std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> make_peer_memory;

  std::vector<Communicator*> all() const;
  void set_timeout(std::chrono::milliseconds timeout);
  void reset_traffic();
};

/// Makes one group; the request's rank and size are those of this process in it.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const GroupRequest&)>;

MeshGroups make_mesh_groups(const DeviceMesh& mesh, int64_t rank, std::chrono::milliseconds timeout,
                            const MakeCommunicator& make);

/// What makes groups for `world`: nothing real for a dry run, NCCL where `device` is a GPU, else Gloo.
MakeCommunicator communicator_maker(const World& world, const at::Device& device);

/// What gives the ranks of the tensor-parallel group memory that they share; empty where there is none: on several
/// hosts, in a dry run.
std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> peer_memory_maker(const World& world,
                                                                               const DeviceMesh& mesh,
                                                                               std::chrono::milliseconds timeout);

}  // namespace titan
