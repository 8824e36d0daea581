#include "titan/distributed/mesh_groups.h"

#include <algorithm>

namespace titan {

std::vector<Communicator*> MeshGroups::all() const {
  std::vector<Communicator*> groups;
  for (const auto& group : {gather, scatter, replicate, tensor, context, loss, model, world}) {
    if (group) groups.push_back(group.get());
  }
  return groups;
}

void MeshGroups::set_timeout(std::chrono::milliseconds timeout) {
  for (Communicator* group : all()) group->set_timeout(timeout);
}

void MeshGroups::reset_traffic() {
  for (Communicator* group : all()) group->reset_traffic();
}

MeshGroups make_mesh_groups(const DeviceMesh& mesh, int64_t rank, std::chrono::milliseconds timeout,
                            const MakeCommunicator& make) {
  auto group = [&](const char* name, std::vector<MeshAxis> axes) -> std::shared_ptr<Communicator> {
    if (mesh.size(axes) == 1) return nullptr;
    const std::vector<int64_t> ranks = mesh.group(rank, axes);
    GroupRequest request;
    request.name = name;
    request.instance = "/" + std::to_string(ranks.front());  // the ranks of one group share their first
    request.rank = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    request.size = static_cast<int64_t>(ranks.size());
    request.timeout = timeout;
    return make(request);
  };
  using enum MeshAxis;
  MeshGroups groups;
  groups.gather = group("fsdp_gather", {dp_shard, cp});
  groups.scatter = group("fsdp_scatter", {dp_shard, cp});
  groups.replicate = group("dp_replicate", {dp_replicate});
  groups.tensor = group("tp", {tp});
  groups.context = group("cp", {cp});
  groups.loss = group("loss", {dp_replicate, dp_shard, cp});
  groups.model = group("model", {pp, dp_shard, cp, tp});
  groups.world = group("world", {pp, dp_replicate, dp_shard, cp, tp});
  return groups;
}

MakeCommunicator communicator_maker(const World& world, const at::Device& device) {
  if (world.fake) {
    return [](const GroupRequest& request) { return make_fake_communicator(request.name, request.rank, request.size); };
  }
  const bool one_host = world.local_size == world.size;
  return [store = world.store, device, one_host](GroupRequest request) {
    if (device.is_cuda()) return make_nccl_communicator(store, request, device.index());
    if (one_host) request.interface = "lo";
    return make_gloo_communicator(store, request);
  };
}

std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> peer_memory_maker(const World& world,
                                                                               const DeviceMesh& mesh,
                                                                               std::chrono::milliseconds timeout) {
  if (!world.store || world.local_size != world.size) return {};
  const std::vector<int64_t> ranks = mesh.group(world.rank, std::array{MeshAxis::tp});
  const int64_t rank = std::find(ranks.begin(), ranks.end(), world.rank) - ranks.begin();
  const std::string name = "tp/" + std::to_string(ranks.front());
  return [store = world.store, name, rank, size = static_cast<int64_t>(ranks.size()), timeout](int64_t capacity) {
    return make_shared_peer_memory(store, name, rank, size, capacity, timeout);
  };
}

}  // namespace titan
