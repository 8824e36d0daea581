#include "titan/distributed/mesh_communicators.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "titan/base/error.h"
#include "titan/distributed/collective_trace.h"
#include "titan/distributed/communicator_members.h"
#include "titan/gpu/cuda.h"

namespace titan {

std::vector<Communicator*> MeshCommunicators::all() const {
  std::vector<std::shared_ptr<Communicator>> named{gather, scatter,  replicate, tensor, context, loss,
                                                   data,   pipeline, tied,      model,  world};
  for (const auto& [name, communicator] : of_weights) named.push_back(communicator);
  std::vector<Communicator*> distinct;
  for (const auto& communicator : named) {
    const bool known = std::find(distinct.begin(), distinct.end(), communicator.get()) != distinct.end();
    if (communicator && !known) distinct.push_back(communicator.get());
  }
  return distinct;
}

std::shared_ptr<Communicator> MeshCommunicators::for_weights(std::string_view name) const {
  using namespace communicator_names;
  if (name == kGather) return gather;
  if (name == kScatter) return scatter;
  if (name == kReplicate) return replicate;
  const auto found = of_weights.find(name);
  TITAN_CHECK((name.empty() || found != of_weights.end()) && "the weight group's communicator was made", name);
  return name.empty() ? nullptr : found->second;
}

void MeshCommunicators::set_timeout(std::chrono::milliseconds timeout) {
  for (Communicator* communicator : all()) communicator->set_timeout(timeout);
}

void MeshCommunicators::shut_down() {
  for (Communicator* communicator : all()) communicator->shut_down();
}

void MeshCommunicators::reset_traffic() {
  for (Communicator* communicator : all()) communicator->reset_traffic();
}

MeshCommunicators make_mesh_communicators(const DeviceMesh& mesh, int64_t rank, std::chrono::milliseconds timeout,
                                          const MakeCommunicator& make, bool groups_of_one,
                                          const std::optional<std::pair<int64_t, int64_t>>& tied,
                                          const std::vector<std::string>& of_weights) {
  auto communicator_of = [&](const std::string& name, const std::vector<int64_t>& ranks,
                             const char* queue) -> std::shared_ptr<Communicator> {
    const auto mine = std::find(ranks.begin(), ranks.end(), rank);
    if ((ranks.size() == 1 && !groups_of_one) || mine == ranks.end()) return nullptr;
    CommunicatorRequest request;
    request.name = name;
    request.queue = queue;
    // Communicators of one name differ in their members, of which the first is enough: they are disjoint.
    request.instance = "/" + std::to_string(ranks.front());
    request.rank = mine - ranks.begin();
    request.size = static_cast<int64_t>(ranks.size());
    request.timeout = timeout;
    request.members = ranks;
    return make(request);
  };
  // A queue of its own: for communicators whose calls overlap with other communication of the same ranks.
  auto communicator_along = [&](const std::string& name, const char* queue = "") {
    return communicator_of(name, mesh.members(rank, axes_of(name)), queue);
  };
  using namespace communicator_names;
  MeshCommunicators communicators;
  communicators.gather = communicator_along(kGather, "gather");
  communicators.scatter = communicator_along(kScatter);
  communicators.replicate = communicator_along(kReplicate);
  communicators.tensor = communicator_along(kTensor);
  communicators.context = communicator_along(kContext, "cp");
  communicators.loss = communicator_along(kLoss);
  communicators.data = mesh.size(MeshAxis::pp) == 1 ? communicators.loss : communicator_along(kData);
  communicators.pipeline = communicator_along(kPipeline, "pp");
  if (tied) {
    const std::vector<int64_t> line = mesh.members(rank, axes_of(kTied));
    communicators.tied =
        communicator_of(kTied, {line[static_cast<size_t>(tied->first)], line[static_cast<size_t>(tied->second)]}, "");
  }
  communicators.model = communicator_along(kModel);
  communicators.world = communicator_along(kWorld);
  for (const std::string& name : of_weights) {
    communicators.of_weights[name] = communicator_along(name, name.starts_with(kGather) ? "gather" : "");
  }
  for (Communicator* communicator : communicators.all()) communicator->time_in(communicators.time);
  return communicators;
}

MakeCommunicator communicator_maker(const World& world, const at::Device& device, TransportOptions options) {
  if (world.fake) {
    return [](const CommunicatorRequest& request) {
      return make_fake_communicator(request.name, request.rank, request.size);
    };
  }
  const bool one_host = world.is_on_one_host();
  MakeCommunicator over_nccl;
  if (device.is_cuda()) {
    auto watch = world.hung ? std::make_shared<OverdueWatch>(world.hung) : nullptr;
    over_nccl = cuda().nccl(world.store, device.index(), std::move(watch));
  }
  return [store = world.store, waits = world.waits, over_nccl, one_host,
          options = std::move(options)](CommunicatorRequest request) mutable {
    request.waits = waits;
    if (over_nccl) return over_nccl(request);
    if (one_host && options.shared_memory) {
      std::string refusal;
      if (auto communicator = make_host_communicator(store, request, refusal)) return communicator;
      if (options.refused) std::exchange(options.refused, nullptr)(refusal);
    }
    if (const char* chosen = std::getenv("GLOO_SOCKET_IFNAME")) request.interface = chosen;
    if (one_host) request.interface = "lo";
    return make_gloo_communicator(store, request);
  };
}

std::function<std::unique_ptr<PeerMemory>(int64_t capacity)> peer_memory_maker(const World& world,
                                                                               const DeviceMesh& mesh,
                                                                               const at::Device& device,
                                                                               std::chrono::milliseconds timeout) {
  const std::vector<int64_t> ranks = mesh.members(world.rank, std::array{MeshAxis::tp});
  const auto size = static_cast<int64_t>(ranks.size());
  const int64_t rank = std::find(ranks.begin(), ranks.end(), world.rank) - ranks.begin();
  if (world.fake) return [=](int64_t capacity) { return make_fake_peer_memory(rank, size, capacity, device); };
  if (!world.store) return {};
  if (!std::includes(world.host_ranks.begin(), world.host_ranks.end(), ranks.begin(), ranks.end())) return {};
  const std::string name = "tp/" + std::to_string(ranks.front());
  const CommunicatorMembers members{"tp", ranks, world.waits};
  return [=, store = world.store](int64_t capacity) {
    if (device.is_cuda()) return cuda().peer_memory(store, name, rank, size, capacity, timeout, device.index());
    return noting(make_shared_peer_memory(store, name, rank, size, capacity, timeout), members);
  };
}

}  // namespace titan
