// What communicators are made of: memory between the CPU ranks of one host, and LibTorch's process groups: Gloo between
// CPUs of several hosts, NCCL between GPUs (Cuda::nccl). Members find each other through the run's store under the
// group's name.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/distributed/device_mesh.h"
#include "titan/distributed/peer_memory.h"
#include "titan/distributed/world.h"

namespace titan {

class WaitForGraph;

struct GroupRequest {
  std::string name;       // what the group is for; equal on all ranks
  std::string instance;   // which of the groups of that name; equal on all members
  std::string interface;  // network interface for Gloo; empty: that of the host's name
  int64_t rank = 0;       // of this process within the group
  int64_t size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::vector<int64_t> members{};         // ranks of the run, by rank of the group; empty: not known
  std::shared_ptr<WaitForGraph> waits{};  // records the ranks that this one waits for; null: off
  std::string queue{};  // groups of equal members and queue have one transport: calls follow each other
};

/// For ranks of one host. Blocks until all members have called it. Null, on all of them, when one of them cannot share
/// memory with the others; `refusal` says why.
std::unique_ptr<Communicator> make_host_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const GroupRequest& request, std::string& refusal);

/// Blocks until all members have called it. Throws Error(launcher) naming the group when they have not within the
/// timeout.
std::unique_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const GroupRequest& request);

/// Makes one group; the request's rank and size are those of this process in it.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const GroupRequest&)>;

// The process groups of one rank: which axes of the mesh talk to each other about what. Made once, in one order on all
// ranks; groups of one rank do not exist unless they are asked for.

/// Null where the group would have one member. Axes in docs/distributed.md.
struct MeshGroups {
  std::shared_ptr<Communicator> gather;     // dp_shard × cp: shards of weights
  std::shared_ptr<Communicator> scatter;    // the same ranks: gradients, so that both directions are under way at once
  std::shared_ptr<Communicator> replicate;  // dp_replicate
  std::shared_ptr<Communicator> tensor;     // tp
  std::shared_ptr<Communicator> context;    // cp
  std::shared_ptr<Communicator> loss;       // pp × dp_replicate × dp_shard × cp: ranks whose losses add up
  std::shared_ptr<Communicator> data;       // dp_replicate × dp_shard × cp: ranks that read different tokens
  std::shared_ptr<Communicator> pipeline;   // pp
  std::shared_ptr<Communicator> tied;       // the two ranks of pp with tied embeddings; null on the others
  std::shared_ptr<Communicator> model;      // pp × dp_shard × cp × tp: ranks that hold one copy of the model
  std::shared_ptr<Communicator> world;
  /// Collective over `tensor`: allocates peer memory of `capacity` bytes a rank. Empty where the device has none.
  std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> make_peer_memory;

  std::vector<Communicator*> all() const;
  void set_timeout(std::chrono::milliseconds timeout);
  void reset_traffic();
  /// Of each, in the order of `all`.
  void shut_down();
};

/// With `groups_of_one` also those of one rank, where every collective is a copy (to see a backend work). `tied`: the
/// two coordinates on the axis pp with tied embeddings; none if weights are not tied or one rank has both.
MeshGroups make_mesh_groups(const DeviceMesh& mesh, int64_t rank, std::chrono::milliseconds timeout,
                            const MakeCommunicator& make, bool groups_of_one = false,
                            const std::optional<std::pair<int64_t, int64_t>>& tied = std::nullopt);

struct TransportOptions {
  /// Between CPU ranks of one host: memory that they share; false: sockets.
  bool shared_memory = true;
  /// Hears once why the ranks talk through sockets although they should share memory.
  std::function<void(const std::string& reason)> refused;
};

/// What makes groups for `world`: nothing real for a dry run, NCCL where `device` is a GPU, else shared memory where
/// all ranks are on one host, else Gloo: within one host over its loopback, between hosts over the interface that
/// GLOO_SOCKET_IFNAME names, else that of the host's name.
MakeCommunicator communicator_maker(const World& world, const at::Device& device, TransportOptions options = {});

/// What gives the ranks of the tensor-parallel group memory that they share; empty where there is none: when they are
/// on several hosts.
std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> peer_memory_maker(const World& world,
                                                                               const DeviceMesh& mesh,
                                                                               const at::Device& device,
                                                                               std::chrono::milliseconds timeout);

}  // namespace titan
