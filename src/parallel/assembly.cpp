#include "titan/parallel/assembly.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "titan/base/error.h"
#include "titan/model/initialise.h"
#include "titan/ops/float8_products.h"
#include "titan/ops/tensor_checks.h"
#include "titan/parallel/unit_runner.h"

namespace titan {
namespace {

std::shared_ptr<PeerMemory> peer_memory_of(const Plan& plan, const MeshCommunicators& communicators) {
  if (!communicators.tensor || plan.peer_bytes() == 0) return nullptr;
  // device_problems has refused what the number of a host's ranks shows; which ranks they are is known only now.
  if (communicators.make_peer_memory) return communicators.make_peer_memory(plan.peer_bytes());
  throw Error(ExitCode::bad_config,
              "parallelism.enable_async_tensor_parallel needs tensor-parallel ranks that share memory: all on one "
              "host; set it to false, or choose parallelism.tensor_parallel_degree within a host");
}

std::shared_ptr<const TensorParallel> tensor_parallel_of(const Plan& plan, const MeshCommunicators& communicators,
                                                         const std::shared_ptr<PeerMemory>& peer_memory) {
  if (!communicators.tensor) return nullptr;
  std::shared_ptr<const SequenceParallel> exchange =
      peer_memory ? make_async_sequence_parallel(peer_memory) : make_collective_sequence_parallel(communicators.tensor);
  return std::make_shared<TensorParallel>(
      TensorParallel{communicators.tensor, std::move(exchange), !plan.request.parallelism.disable_loss_parallel});
}

std::shared_ptr<const ContextParallel> context_parallel_of(const Plan& plan, const MeshCommunicators& communicators) {
  if (plan.request.split().ranks == 1) return nullptr;
  return std::make_shared<ContextParallel>(ContextParallel{communicators.context, plan.request.split(),
                                                           plan.request.parallelism.context_parallel_rotate_method});
}

Float8Casts float8_casts_of(const ExecutorOptions& options) {
  return options.kernels ? make_fused_float8_casts(options.kernels) : make_aten_float8_casts();
}

std::shared_ptr<const LinearProducts> float8_products_of(const Plan& plan, const ModelStrategies& strategies,
                                                         const MeshCommunicators& communicators,
                                                         const Float8Casts& casts) {
  const LinearFloat8Section& section = *plan.request.float8;
  return make_float8_products({.recipe = recipe_of(section),
                               .emulate = section.emulate,
                               .round_weight_gradient = strategies.loss.round_weight_gradient,
                               .keeps_weights = keeps_float8_weights(plan.request),
                               .casts = casts,
                               .tensor = communicators.tensor,
                               .warn = strategies.warn});
}

std::shared_ptr<HostOffload> offload_of(const at::Device& device, bool enabled) {
  auto on_device = std::make_shared<MemoryArena>(device);
  auto host = enabled ? std::make_shared<MemoryArena>(at::Device(at::kCPU)) : on_device;
  return std::make_shared<HostOffload>(std::move(host), std::move(on_device));
}

WeightStores weights_of(const Plan& plan, const Assembly& assembly, const MeshCommunicators& communicators,
                        const at::Device& device, const Float8Casts& casts) {
  const std::shared_ptr<HostOffload> offload =
      assembly.offload ? assembly.offload : offload_of(device, /*enabled=*/false);
  WeightStores weights;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    weights.push_back(std::make_unique<WeightStore>(group, assembly.group_parameters[g], plan.request, offload,
                                                    group.gathers ? assembly.slots : nullptr, communicators, casts));
  }
  return weights;
}

std::unique_ptr<UnitRunner> runner_of(const Plan& plan, const Model& model, std::unique_ptr<GraphCapture> recorder) {
  if (!recorder) return std::make_unique<EagerRunner>();
  std::vector<const Unit*> blocks;
  for (const UnitPlan& unit : plan.units) {
    if (unit.role == UnitRole::block) blocks.push_back(model.chain()[unit.chain_index].get());
  }
  return std::make_unique<GraphRunner>(std::move(blocks), std::move(recorder));
}

}  // namespace

Assembly assemble(const ModelFamily& family, const ModelRequest& request, ModelStrategies strategies, const Plan& plan,
                  const MeshCommunicators& communicators, const at::Device& device, std::optional<uint64_t> seed,
                  ExecutorOptions options, std::unique_ptr<GraphCapture> recorder) {
  Assembly assembly;
  const Float8Casts casts = float8_casts_of(options);
  assembly.peer_memory = peer_memory_of(plan, communicators);
  strategies.tensor_parallel = tensor_parallel_of(plan, communicators, assembly.peer_memory);
  if (plan.request.float8) strategies.products = float8_products_of(plan, strategies, communicators, casts);
  strategies.context_parallel = context_parallel_of(plan, communicators);
  assembly.model = family.build(request, strategies);
  assembly.model->prepare(device);
  for (const WeightGroupPlan& group : plan.groups) {
    std::vector<Parameter*> members;
    for (const ParameterPlan& planned : group.parameters) {
      members.push_back(&assembly.model->parameter(planned.spec.name));
    }
    assembly.group_parameters.push_back(std::move(members));
  }
  if (plan.gathers_weights()) {
    assembly.offload = offload_of(device, plan.request.training.enable_cpu_offload);
    assembly.slots = std::make_shared<SlotPool>(plan, assembly.offload->device());
  }
  if (plan.request.offload_activations) assembly.activation_offload = offload_of(device, /*enabled=*/true);
  if (plan.request.offloads_optimizer()) assembly.optimizer_offload = offload_of(device, /*enabled=*/true);
  options.activation_offload = assembly.activation_offload;
  if (plan.request.training.enable_cpu_offload) options.weight_offload = assembly.offload;
  options.pipeline = communicators.pipeline;
  options.device = device;
  options.collectives = communicators.time;
  WeightStores weights = weights_of(plan, assembly, communicators, device, casts);
  for (const auto& parameter : assembly.model->parameter_handles()) {
    if (!parameter->master.defined()) continue;  // another stage has it
    if (seed) initialise(*parameter, parameter->shard_box(), *seed);
    assembly.parameters.push_back(parameter.get());
  }
  TITAN_CHECK(!recorder || (plan.request.cuda_graphs && !why_no_graphs(plan.request)));
  std::unique_ptr<MicrobatchGraphs> graphs;
  if (recorder && plan.records_microbatches()) {
    graphs = std::make_unique<MicrobatchGraphs>(assembly.parameters, std::move(recorder));
  }
  assembly.executor =
      std::make_unique<Executor>(plan, assembly.model->chain(), std::move(weights),
                                 runner_of(plan, *assembly.model, std::move(recorder)), options, std::move(graphs));
  return assembly;
}

at::Tensor gather_logical(const Parameter& parameter, const at::Tensor& shard, Communicator* world,
                          const at::Device& device) {
  const bool is_shard = shard.defined() && shard.sizes() == at::IntArrayRef(parameter.shard_box().extent);
  // A rank of another stage has none; a single process has all of them.
  TITAN_CHECK(is_shard || (world && !shard.defined()), parameter.name(), summary_of(shard),
              parameter.shard_box().extent);
  if (!world) return shard.clone();
  const at::TensorOptions options(device);
  // A rank of another pipeline stage has no shard and does not know its dtype, but all messages need the same size.
  const auto code = static_cast<int64_t>(shard.defined() ? shard.scalar_type() : at::kByte);
  const at::Tensor type = at::full({1}, code, options.dtype(at::kByte));
  world->all_reduce({type}, Reduction::max)->wait();
  at::Tensor whole =
      at::zeros(parameter.spec().shape, options.dtype(static_cast<at::ScalarType>(type.item<uint8_t>())));
  if (shard.defined() && parameter.owns_shard()) {
    at::Tensor mine = whole;
    for (int64_t d = 0; d < whole.dim(); ++d) {
      const auto i = static_cast<size_t>(d);
      mine = mine.narrow(d, parameter.shard_box().offset[i], parameter.shard_box().extent[i]);
    }
    mine.copy_(shard);
  }
  // One rank owns each element and all others have zero bytes there, so the maximum of the bytes is the element's.
  at::Tensor bytes = whole.view({-1}).view(at::kByte);
  world->all_reduce({bytes}, Reduction::max)->wait();
  return whole;
}

}  // namespace titan
