#include "ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "expert_family.h"
#include "rank_checkpoint.h"
#include "recorded_calls.h"
#include "support/checkout.h"
#include "support/host_kernels.h"
#include "support/optimizer_options.h"
#include "support/whole_matrices.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/ops/fused_kernels.h"
#include "titan/optimize/spike_guard.h"
#include "titan/plan/plan.h"
#include "titan/schedule/action.h"
#include "titan/schedule/pipeline_plan.h"
#include "titan/train/traffic_check.h"

namespace titan {
namespace {

constexpr uint64_t kSeed = 42;

struct GlobalBatch {
  at::Tensor tokens, labels, positions;
  std::vector<DocumentStarts> documents;
  double valid;
};

/// Three documents in every sample, cut elsewhere in each, one of them a single token; their positions go from 0.
void add_documents(GlobalBatch& batch, int64_t samples, int64_t length) {
  batch.positions = at::arange(length, at::kLong).repeat({samples, 1});
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t cut = 1 + sample * 5 % (length - 2);
    batch.documents.push_back({0, cut, cut + 1});
    for (int64_t start : {cut, cut + 1}) {
      at::Tensor rest = batch.positions[sample].narrow(0, start, length - start);
      rest.copy_(at::arange(length - start, at::kLong));
    }
  }
}

/// The step's samples, the same on every rank; with unequal masks sample j counts only a few of its labels.
GlobalBatch global_batch(int64_t step, const LayoutRow& row) {
  const int64_t samples = row.global_batch;
  const auto seed = static_cast<uint64_t>(1000 + step);
  GlobalBatch batch;
  batch.tokens = integers({samples, row.length}, row.sizes.vocab_size, seed);
  batch.labels = batch.tokens.roll(-1, 1).contiguous();
  if (row.documents) add_documents(batch, samples, row.length);
  if (row.unequal_masks) {
    for (int64_t sample = 0; sample < samples; ++sample) {
      batch.labels[sample].narrow(0, 0, (sample * 7) % (row.length - 1)).fill_(kIgnoredLabel);
    }
  }
  batch.valid = batch.labels.ne(kIgnoredLabel).sum().item<double>();
  return batch;
}

/// This rank's places of all rows.
at::Tensor held_of(const at::Tensor& rows, const PlanRequest& request) {
  std::vector<at::Tensor> parts;
  for (const PlaceRange& places : request.split().places(request.place.coordinate(MeshAxis::cp), rows.size(1))) {
    parts.push_back(rows.narrow(1, places.begin, places.end - places.begin));
  }
  return at::cat(parts, 1);
}

std::vector<BatchContext> share_of(const GlobalBatch& batch, const PlanRequest& request) {
  const int64_t ranks = request.place.mesh.data_parallel_degree();
  const int64_t rank = request.place.mesh.data_parallel_rank(request.place.rank);
  std::vector<BatchContext> microbatches;
  for (int64_t a = 0; a < request.accumulation; ++a) {
    const int64_t first = a * request.samples * ranks + rank * request.samples;
    BatchContext context;
    auto mine = [&](const at::Tensor& rows) { return held_of(rows.narrow(0, first, request.samples), request); };
    context.tokens = mine(batch.tokens);
    context.labels = mine(batch.labels);
    if (batch.positions.defined()) {
      context.positions = mine(batch.positions);
      const auto begin = batch.documents.begin() + first;
      context.bounds.document_starts.assign(begin, begin + request.samples);
    } else if (request.split().ranks > 1) {
      context.positions = held_of(at::arange(request.sequence_length, at::kLong).unsqueeze(0), request);
    }
    context.loss_scale = 1.0 / batch.valid;
    microbatches.push_back(std::move(context));
  }
  return microbatches;
}

std::map<std::string, TrafficTable> traffic_of(const MeshCommunicators& communicators) {
  std::map<std::string, TrafficTable> result;
  for (Communicator* communicator : communicators.all()) result[communicator->name()] = communicator->traffic();
  return result;
}

at::Tensor part_of(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.extent.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return whole.contiguous();
}

/// Bytes copied to the device, which must be those copied to the host.
int64_t offloaded_bytes(const std::shared_ptr<HostOffload>& host_offload) {
  if (!host_offload) return 0;
  EXPECT_EQ(host_offload->to_device_bytes(), host_offload->to_host_bytes());
  return host_offload->to_device_bytes();
}

/// Counts what tensors take on this thread from COLLECT to STEP.
class MatrixMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (!counts_) return;
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  void see(ActionKind next) {
    if (next == ActionKind::collect && !counts_) held_ = 0, counts_ = true;
    if (next == ActionKind::step) counts_ = false;
  }
  int64_t peak() const { return peak_; }

 private:
  bool counts_ = false;
  int64_t held_ = 0, peak_ = 0;
};

/// One rank from its first to its last step.
class RankRun {
 public:
  RankRun(const LayoutRow& row, const World& world, const Fault& fault) : row_(row), world_(world), fault_(fault) {
    MeshPlace place{DeviceMesh({row.pipeline, row.replicate, row.shard, row.context, row.tensor}, world.size),
                    world.rank};
    const ModelRequest request = matrix_request(row);
    const ModelDescription model = matrix_model(row);
    request_ = matrix_plan(row, place);
    const PlanRequest plan = with_pipeline(request_, row, model);
    const TransportOptions transport{.shared_memory = !row.sockets, .refused = {}};
    communicators_ = make_mesh_communicators(
        place.mesh, world.rank, std::chrono::seconds(60), communicator_maker(world, at::kCPU, transport),
        /*groups_of_one=*/false, tied_ranks_of(plan, model), weight_communicators(model, plan));
    communicators_.make_peer_memory = peer_memory_maker(world, place.mesh, at::kCPU, std::chrono::seconds(60));
    for (const Communicator* communicator : communicators_.all()) {
      EXPECT_EQ(communicator->transport(), row.sockets ? "Gloo" : "shared memory") << communicator->name();
    }
    made_ = communicators_;
    if (fault.communicators) fault.communicators(world.rank, communicators_);
    calls_.listen_to(communicators_);
    const std::shared_ptr<const ModelFamily> family = family_of(request);
    result_.plan = make_plan(model, plan);
    ExecutorOptions kernels;
    if (row.fused) kernels.kernels = kernels.loss_kernels = std::make_shared<FusedKernels>(host_kernels(), at::kCPU);
    assembly_ = assemble(*family, request,
                         {std::make_shared<DenseProducts>(), {.chunks = result_.plan.request.training.loss_chunks}},
                         result_.plan, communicators_, at::kCPU, kSeed, kernels,
                         row.graphs ? std::make_unique<ReplayedWork>(replays_) : nullptr);
    places_ = place_parameters(model, plan);
    for (const ParameterPlace& place_of : places_) {
      if (place_of.spec.trainable) trained_.insert(place_of.spec.name);
    }
    ParameterGroup all;
    for (size_t i = 0; i < assembly_.parameters.size(); ++i) all.members.push_back(i);
    if (row.whole_matrices) {
      optimizer_ = std::make_unique<WholeMatrixOptimizer>(assembly_.parameters, result_.plan);
    } else if (row.muon) {
      optimizer_ =
          make_optimizer(assembly_.parameters, {all}, result_.plan, row.rounding_seed, assembly_.optimizer_offload);
    } else {
      optimizer_ = std::make_unique<AdamOptimizer>(assembly_.parameters, std::vector{all}, with_states(row.state),
                                                   row.rounding_seed, assembly_.optimizer_offload);
    }
    runner_ = std::make_unique<StepRunner>(
        *assembly_.executor, *optimizer_, assembly_.group_parameters, row.max_norm,
        StepCommunicators{communicators_.loss, communicators_.model, communicators_.of_weights, communicators_.tensor});
    if (!fault.spiked_step) return;
    guard_ = std::make_unique<SpikeGuard>(/*window=*/4, /*threshold=*/6, /*skips=*/true, at::kCPU);
    runner_->guard_with(guard_.get());
  }

  RankResult run(int64_t steps) {
    std::map<std::string, at::Tensor> shards;
    auto note_gradients = [&](const std::vector<Parameter*>& parameters) {
      for (Parameter* parameter : parameters) {
        if (fault_.reduced_gradient) fault_.reduced_gradient(world_.rank, *parameter);
        if (parameter->trainable() && !shards.contains(parameter->name())) {
          shards[parameter->name()] = parameter->gradient_shard.clone();
        }
      }
    };
    // Before they are in the norm, so that a fault is as well.
    const auto matrix_memory = std::make_shared<MatrixMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, matrix_memory);
    const Executor::Observer observer = [&](const Action& action) {
      matrix_memory->see(action.kind);
      if (action.kind != ActionKind::squares || row_.step_in_backward) return;
      if (action.group < 0) return note_gradients(assembly_.parameters);
      note_gradients(assembly_.group_parameters[static_cast<size_t>(action.group)]);
    };
    if (!fault_.load_from.empty()) load_rank(state(), fault_.load_from, fault_.steps_before);
    std::map<std::string, at::Tensor> initial;
    if (row_.muon) initial = whole_weights();
    for (int64_t step = fault_.steps_before + 1; step <= fault_.steps_before + steps; ++step) {
      if (step == 2 && row_.muon) {
        for (const auto& [name, weight] : whole_weights()) result_.first_update[name] = weight - initial.at(name);
      }
      if (step == 2) made_.reset_traffic();
      for (const auto& host_offload : {assembly_.offload, assembly_.activation_offload, assembly_.optimizer_offload}) {
        if (step == 2 && host_offload) host_offload->reset();
      }
      const GlobalBatch batch = global_batch(step, row_);
      const bool stop = step == 2 && fault_.stopping_rank == world_.rank;
      std::vector<BatchContext> share = share_of(batch, request_);
      for (BatchContext& microbatch : share) microbatch.loss_scale *= step == fault_.spiked_step ? 50 : 1;
      const StepOutcome outcome =
          runner_->run(share, step, /*rate=*/3e-3, Requests{.stop = stop}, /*dump=*/nullptr, observer);
      result_.losses.push_back(outcome.loss.item<double>());
      result_.statistics.push_back(numbers_of(outcome.statistics));
      if (guard_) result_.spikes.push_back(numbers_of(outcome.spike));
      result_.norms.push_back(outcome.control.norm.item<double>());
      result_.stop_requests.push_back(outcome.requests[0].item<double>());
      if (step == 2) note_traffic();
    }
    result_.matrix_bytes_held = matrix_memory->peak();
    note_counts();
    if (steps > 0) gather_gradients(shards);
    result_.weights = whole_weights();
    if (row_.muon) result_.first_moments = whole_first_moments();
    if (!fault_.save_to.empty()) save_rank(state(), fault_.save_to, fault_.steps_before + steps);
    calls_.write(row_, world_.rank, result_);
    return std::move(result_);
  }

 private:
  void note_counts() {
    if (row_.pipeline > 1) result_.most_live = assembly_.executor->most_live();
    result_.replays = *replays_;
    result_.gradient_bytes = assembly_.executor->gradient_bytes();
    if (const auto* whole = dynamic_cast<const WholeMatrixOptimizer*>(optimizer_.get())) {
      result_.updated_matrices = whole->updated();
    }
    result_.moment_bytes_held = optimizer_->state_bytes();
  }

  /// The whole gradients of all ranks' shards, and which shards of this rank are not the part of them that they should
  /// be.
  void gather_gradients(const std::map<std::string, at::Tensor>& shards) {
    for (const auto& parameter : assembly_.model->parameter_handles()) {
      if (!trained_.contains(parameter->name())) continue;
      const at::Tensor none;
      const auto mine = shards.find(parameter->name());
      const at::Tensor whole =
          gather_logical(*parameter, mine == shards.end() ? none : mine->second, communicators_.world.get(), at::kCPU);
      if (mine != shards.end() && !same_bits(part_of(whole, parameter->shard_box()), mine->second)) {
        result_.strays.push_back(parameter->name());
      }
      result_.gradients[parameter->name()] = whole;
    }
  }

  /// The family that the row's model is of.
  std::shared_ptr<const ModelFamily> family_of(const ModelRequest& request) const {
    if (row_.side_channel) {
      const bool breaks = !fault_.side_rank || fault_.side_rank == world_.rank;
      return std::make_shared<SideChannelFamily>(breaks ? fault_.side : SideFault::none);
    }
    if (row_.experts) {
      const std::shared_ptr<Communicator>& ranks = communicators_.gather;
      return std::make_shared<ExpertFamily>(matrix_model(row_),
                                            ranks ? make_collective_sequence_parallel(ranks) : nullptr);
    }
    return {std::shared_ptr<void>(), find_model_family(request.model.name)};  // not owned
  }

  static std::vector<double> numbers_of(const at::Tensor& tensor) {
    const at::Tensor numbers = tensor.contiguous();
    return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
  }

  RankState state() const { return {assembly_, *optimizer_, places_, request_.place.mesh, world_}; }

  std::map<std::string, at::Tensor> whole_weights() {
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : assembly_.model->parameter_handles()) {
      weights[parameter->name()] = gather_logical(*parameter, parameter->master, communicators_.world.get(), at::kCPU);
    }
    return weights;
  }

  std::map<std::string, at::Tensor> whole_first_moments() {
    std::map<const Parameter*, at::Tensor> mine;  // those of other pipeline stages are missing
    for (size_t i = 0; i < assembly_.parameters.size(); ++i) {
      if (assembly_.parameters[i]->trainable()) mine[assembly_.parameters[i]] = optimizer_->moments(i)[0];
    }
    std::map<std::string, at::Tensor> moments;
    for (const auto& parameter : assembly_.model->parameter_handles()) {
      if (!trained_.contains(parameter->name())) continue;
      moments[parameter->name()] =
          gather_logical(*parameter, mine[parameter.get()], communicators_.world.get(), at::kCPU);
    }
    return moments;
  }

  void note_traffic() {
    result_.traffic = traffic_of(made_);
    result_.reported = check_traffic(result_.plan, made_).differences;
    result_.activation_bytes = offloaded_bytes(assembly_.activation_offload);
    result_.moment_bytes = offloaded_bytes(assembly_.optimizer_offload);
    if (!assembly_.offload) return;
    result_.to_device_bytes = assembly_.offload->to_device_bytes();
    result_.to_host_bytes = assembly_.offload->to_host_bytes();
    result_.device_peak = assembly_.offload->device().peak_bytes();
    result_.host_peak = assembly_.offload->host().peak_bytes();
  }

  LayoutRow row_;
  World world_;
  Fault fault_;
  RecordedCalls calls_;
  MeshCommunicators made_;
  MeshCommunicators communicators_;  // the same, but for a fault
  PlanRequest request_;              // before a pipeline cuts its microbatches
  std::vector<ParameterPlace> places_;
  std::set<std::string> trained_;
  RankResult result_;
  std::shared_ptr<ReplayCounts> replays_ = std::make_shared<ReplayCounts>();
  Assembly assembly_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<SpikeGuard> guard_;
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace

std::vector<RankResult> train_ranks(const LayoutRow& row, int64_t steps, const Fault& fault) {
  // LibTorch's flight recorder is one for the process and not made for several ranks in it.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const int64_t size = row.world();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int64_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<RankResult> results(static_cast<size_t>(size));
  std::vector<std::string> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      World world{.rank = rank, .size = size, .local_rank = rank, .host_ranks = all, .store = store, .launcher = {}};
      try {
        results[static_cast<size_t>(rank)] = RankRun(row, world, fault).run(steps);
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t rank = 0; rank < size; ++rank) {
    const std::string& failure = failures[static_cast<size_t>(rank)];
    if (!failure.empty()) ADD_FAILURE() << row.name() << ", rank " << rank << ": " << failure;
  }
  return results;
}

}  // namespace titan
