// Builds a model that runs on this rank from a plan: the model with its handles, the weight store of every group, the
// initial weights and the executor. The only place that maps a plan's choices to implementations.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/distributed/mesh_communicators.h"
#include "titan/model/model.h"
#include "titan/parallel/executor.h"
#include "titan/parallel/host_offload.h"
#include "titan/parallel/work_graph.h"

namespace titan {

struct Assembly {
  std::unique_ptr<Model> model;
  std::vector<Parameter*> parameters;                     // in canonical order
  std::vector<std::vector<Parameter*>> group_parameters;  // the same by weight group of the plan
  std::shared_ptr<HostOffload> offload;                   // null unless weights are gathered
  std::shared_ptr<SlotPool> slots;                        // null when weights are not gathered
  std::shared_ptr<HostOffload> activation_offload;        // null unless activations are offloaded
  std::shared_ptr<HostOffload> optimizer_offload;         // null unless moments are offloaded
  std::shared_ptr<PeerMemory> peer_memory;                // null without async tensor parallelism
  std::unique_ptr<Executor> executor;
};

/// `strategies` without tensor parallelism, context parallelism and float8 products: those come from plan and groups.
/// Initial weights are a pure function of `seed`, whatever the layout; without a seed the caller loads them. With a
/// `recorder` whole microbatches, or the blocks, run through recorded graphs (Plan::records_microbatches).
Assembly assemble(const ModelFamily& family, const ModelRequest& request, ModelStrategies strategies, const Plan& plan,
                  const MeshCommunicators& communicators, const at::Device& device, std::optional<uint64_t> seed,
                  ExecutorOptions options = {}, std::unique_ptr<GraphCapture> recorder = nullptr);

/// Gathers the whole logical tensor of `parameter` (master, gradient or moment) on every rank, bit for bit, from each
/// rank's `shard` [extents of shard_box]. `world`: null for a single rank. `shard`: undefined on ranks of other stages.
/// `device`: of the messages. For debugging only: every rank holds the whole tensor.
at::Tensor gather_logical(const Parameter& parameter, const at::Tensor& shard, Communicator* world,
                          const at::Device& device);

}  // namespace titan
