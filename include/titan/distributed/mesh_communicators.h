// Creates communicators: shared memory between CPU ranks of one host, Gloo between CPUs of several hosts, NCCL between
// GPUs (Cuda::nccl). Members find each other through the run's store under the communicator's name.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/distributed/peer_memory.h"
#include "titan/distributed/world.h"
#include "titan/plan/device_mesh.h"

namespace titan {

class WaitForGraph;

struct CommunicatorRequest {
  std::string name;       // what the communicator is for; equal on all ranks
  std::string instance;   // distinguishes communicators of that name; equal on all members
  std::string interface;  // network interface for Gloo; empty: that of the hostname
  int64_t rank = 0;       // of this process within the communicator
  int64_t size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::vector<int64_t> members{};         // global rank by communicator rank; empty: unknown
  std::shared_ptr<WaitForGraph> waits{};  // records the ranks that this one waits for; null: off
  /// NCCL: communicators with equal members and queue share a transport, which serialises their calls.
  std::string queue{};
};

/// A communicator whose members are ranks of one host. Blocks until all of them have called it. Returns null on all
/// members if one of them cannot share memory with the others; `refusal` is the reason.
std::unique_ptr<Communicator> make_host_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const CommunicatorRequest& request, std::string& refusal);

/// Blocks until all members have called it. Throws Error(launcher) naming the communicator at the timeout.
std::unique_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const CommunicatorRequest& request);

/// Creates one communicator; the request's rank and size are those of this process in it.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const CommunicatorRequest&)>;

// The communicators of one rank: which mesh axes communicate, and what for. Created once, in the same order on all
// ranks; communicators of one rank are not created unless requested.

/// Null where the communicator would have one member. Axes: docs/distributed.md.
struct MeshCommunicators {
  std::shared_ptr<Communicator> gather;     // dp_shard × cp: shards of weights
  std::shared_ptr<Communicator> scatter;    // the same ranks: gradients; a separate communicator so that both overlap
  std::shared_ptr<Communicator> replicate;  // dp_replicate
  std::shared_ptr<Communicator> tensor;     // tp
  std::shared_ptr<Communicator> context;    // cp
  std::shared_ptr<Communicator> loss;       // pp × dp_replicate × dp_shard × cp: ranks whose losses add up
  std::shared_ptr<Communicator> data;       // dp_replicate × dp_shard × cp: ranks that read different tokens
  std::shared_ptr<Communicator> pipeline;   // pp
  std::shared_ptr<Communicator> tied;       // the two ranks of pp with tied embeddings; null on the others
  std::shared_ptr<Communicator> model;      // pp × dp_shard × cp × tp: ranks that hold one copy of the model
  std::shared_ptr<Communicator> world;
  /// Of weight groups that are sharded or replicated over other axes, by name (weight_communicators in plan/plan.h).
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> of_weights;
  /// The time that this rank has spent in calls of all communicators.
  std::shared_ptr<CollectiveTime> time = std::make_shared<CollectiveTime>();
  /// Collective over `tensor`: allocates peer memory of `capacity` bytes per rank. Empty where the device has none.
  std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> make_peer_memory;

  std::vector<Communicator*> all() const;
  /// `gather`, `scatter`, `replicate` or one of `of_weights`; null: this rank is alone, or `name` is empty.
  std::shared_ptr<Communicator> for_weights(std::string_view name) const;
  void set_timeout(std::chrono::milliseconds timeout);
  void reset_traffic();
  /// Shuts down each communicator, in the order of `all`.
  void shut_down();
};

/// `groups_of_one`: also creates communicators of one rank, where every collective is a copy (to test a backend).
/// `tied`: the two coordinates on axis pp with tied embeddings; none if embeddings are not tied or one rank has both.
/// `of_weights`: further names, the same on all ranks.
MeshCommunicators make_mesh_communicators(const DeviceMesh& mesh, int64_t rank, std::chrono::milliseconds timeout,
                                          const MakeCommunicator& make, bool groups_of_one = false,
                                          const std::optional<std::pair<int64_t, int64_t>>& tied = std::nullopt,
                                          const std::vector<std::string>& of_weights = {});

struct TransportOptions {
  /// Between CPU ranks of one host. false: use sockets.
  bool shared_memory = true;
  /// Called once with the reason if the ranks use sockets although shared memory was requested.
  std::function<void(const std::string& reason)> refused;
};

/// Returns the factory of `world`'s communicators: fake ones for a dry run, NCCL if `device` is a GPU, shared memory if
/// all ranks are on one host, else Gloo. Gloo uses loopback within one host; between hosts it uses the interface in
/// GLOO_SOCKET_IFNAME, else that of the hostname.
MakeCommunicator communicator_maker(const World& world, const at::Device& device, TransportOptions options = {});

/// Returns the factory of peer memory for the tensor-parallel communicator; empty if its ranks are on several hosts,
/// and for a single process without a store.
std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> peer_memory_maker(const World& world,
                                                                               const DeviceMesh& mesh,
                                                                               const at::Device& device,
                                                                               std::chrono::milliseconds timeout);

}  // namespace titan
