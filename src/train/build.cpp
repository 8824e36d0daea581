// The trainer's construction: tokenizer, model, weights, optimizer, data; and what the start shows of them.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/checkpoint/save.h"
#include "titan/parallel/plan.h"
#include "titan/parallel/program.h"
#include "titan/train/compile.h"
#include "titan/train/host_wait_check.h"
#include "titan/train/job.h"
#include "titan/train/pipeline_job.h"
#include "titan/train/start_report.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

void set_determinism(const JobConfig& config) {
  if (!config.debug.deterministic) return;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  at::globalContext().setDeterministicAlgorithms(true, config.debug.deterministic_warn_only);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

/// The seed of the config, or one that rank 0 draws for all.
uint64_t choose_seed(const JobConfig& config, const World& world, const Log& log) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  uint64_t seed = 0;
  if (world.rank == 0 || !world.store) {
    std::random_device source;
    seed = (uint64_t{source()} << 32 | source()) >> 1;
  }
  if (world.store) {
    const std::string key = "seed";
    if (world.rank == 0) world.store->set(key, std::to_string(seed));
    read_words(world.store->get_to_str(key), 0, [&](const nlohmann::json& said) { seed = said.get<uint64_t>(); });
  }
  log.info("debug.seed is not given; this run draws its weights from seed {}", seed);
  return seed;
}

/// Rank 0 proves the programs of all ranks together in jobs of at most so many ranks: it makes the plan of each.
constexpr int64_t kRanksProvedTogether = 64;

/// Throws InvariantError unless the programs of `plan`, and in a small job those of all ranks, can run: nothing is used
/// before it is there, and no rank waits for a message or a collective that another does not make.
void prove_programs(const Plan& plan, bool graphs, const std::function<Plan(int64_t rank)>& plan_of) {
  std::vector<std::vector<Program>> programs{checked_programs(plan, graphs)};
  const std::string problem = program_problem(plan, programs[0]);
  TITAN_CHECK(problem.empty(), problem);
  const int64_t world = plan.request.place.mesh.world();
  if (plan.request.place.rank != 0 || world == 1 || world > kRanksProvedTogether) return;
  std::vector<Plan> plans{plan};
  for (int64_t rank = 1; rank < world; ++rank) {
    plans.push_back(plan_of(rank));
    programs.push_back(checked_programs(plans.back(), graphs));
  }
  std::vector<RankPrograms> ranks;
  for (size_t r = 0; r < plans.size(); ++r) ranks.push_back({&plans[r], programs[r]});
  const std::string between_ranks = mesh_problem(ranks);
  TITAN_CHECK(between_ranks.empty(), between_ranks);
}

/// The cores that this rank may count on.
int64_t default_threads(const World& world) {
  return world.cores > 0 ? world.cores : std::thread::hardware_concurrency();
}

ModelStrategies strategies_for(const JobConfig& config) {
  const bool round = config.training.weight_gradient_dtype == "bfloat16";
  return {std::make_shared<DenseProducts>(round), config.training.loss_chunks, round};
}

/// The groups of all the model's parameters as groups of those that this rank has.
std::vector<ParameterGroup> groups_of(std::vector<ParameterGroup> groups, const std::vector<Parameter*>& all,
                                      const std::vector<Parameter*>& mine) {
  for (ParameterGroup& group : groups) {
    std::vector<size_t> members;
    for (size_t index : group.members) {
      const auto found = std::find(mine.begin(), mine.end(), all[index]);
      if (found != mine.end()) members.push_back(static_cast<size_t>(found - mine.begin()));
    }
    group.members = std::move(members);
  }
  return groups;
}

}  // namespace

Trainer::Trainer(const JobConfig& config, const World& world, const Log& log)
    : config_(config), log_(log), colour_(log.colour() && !config.metrics.disable_color_printing), world_(world) {
  if (config.checkpoint.enable && config.checkpoint.create_seed_checkpoint && world.is_distributed()) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("checkpoint.create_seed_checkpoint = true with {} processes: start a single one; runs of any "
                    "layout can begin from what it saves",
                    world.size));
  }
  const int64_t threads = config.training.threads > 0 ? config.training.threads : default_threads(world);
  at::set_num_threads(static_cast<int>(threads));
  set_determinism(config);
  at::globalContext().setAllowBF16ReductionCuBLAS(config.training.allow_bf16_reduced_precision_reduction);
  device_ = choose_device(config.training.device, world.local_rank);
  log_.info("{}: {} with {} memory, {} threads", device_.device.is_cpu() ? "CPU" : "CUDA capacity", device_.name,
            human_bytes(static_cast<double>(device_.memory_bytes)), threads);
  require_kernels(device_);
  refuse_waits_by_design(config, device_.device);
  const std::optional<Float8Request> float8 = make_float8_request(config);
  if (float8 && !float8->emulate) require_float8(device_);
  if (threads > std::thread::hardware_concurrency()) {
    log_.shared_warning(
        "training.threads = {} on {} processors: threads that wait for each other make every step slower", threads,
        std::thread::hardware_concurrency());
  }
  with_remedy("name a folder that can be made and written in job.dump_folder",
              [&] { make_folders(config.job.dump_folder); });
  if (world.rank == 0 && !world.fake) {
    const std::string launcher = world.launcher.empty() ? "a single process" : world.launcher;
    folder_ = std::make_unique<RunFolder>(
        config.job.dump_folder, fmt::format("{}, rank 0 on {}, process {}", launcher, host_name(), ::getpid()), log);
  }
  join_ranks();
  if (device_.device.is_cpu()) bytes_before_ = resident_bytes();
  room_ = memory_room(device_, std::ssize(world.host_ranks), config.debug.share_gpu);
  seed_ = choose_seed(config, world, log);
  log_.info("Reading the tokenizer {}", tokenizer_location(config));
  tokenizer_ = open_tokenizer(tokenizer_location(config));
  log_.info(tokenizer_->description());
  build_model();
  open_data();
  if (config.checkpoint.enable && !world.fake) {
    checkpoints_ = std::make_unique<RunCheckpoints>(
        config, world_,
        RunParts{description_, assembly_, all_parameters_, model_groups_, *optimizer_, schedule_, place_, guard_.get()},
        log_);
    step_runner_->before_change([this] {
      const auto start = std::chrono::steady_clock::now();
      checkpoints_->before_change();
      exclude_since(start);
    });
  }
}

void Trainer::join_ranks() {
  place_ = {make_mesh(config_, world_.size), world_.rank};
  share_ = make_sequence_share(config_, place_);
  // Which units and which shared weights there are does not depend on the vocabulary, which the tokenizer may settle.
  const ModelDescription model = find_model_family(config_.model.name)->describe(make_model_request(config_, 1));
  plan_request_ = plan_request(place_, model);
  const bool groups_of_one = plan_request_.groups_of_one;
  if (!world_.is_distributed() && !groups_of_one) return;
  if (world_.is_distributed()) log_.info(mesh_line(place_.mesh));
  if (!world_.store && groups_of_one) world_.store = c10::make_intrusive<c10d::HashStore>();
  // NCCL takes ranks of one host for rivals over one GPU; these are told apart as if each had a host of its own.
  if (config_.debug.share_gpu) ::setenv("NCCL_HOSTID", fmt::format("titan-{}", world_.rank).c_str(), /*overwrite=*/0);
  TransportOptions transport{.shared_memory = config_.comm.shared_memory, .refused = {}};
  transport.refused = [this](const std::string& reason) {
    log_.shared_warning("The ranks of this host cannot share memory ({}); they talk through sockets, which is slower",
                        reason);
  };
  groups_ = make_mesh_groups(place_.mesh, world_.rank, std::chrono::seconds(config_.comm.init_timeout_seconds),
                             communicator_maker(world_, device_.device, transport), groups_of_one,
                             tied_ranks_of(plan_request_, model));
  for (Communicator* group : groups_.all()) group->record_in(world_.trace);
  if (groups_.world) log_.info("Ranks talk through {}", groups_.world->transport());
  groups_.make_peer_memory =
      peer_memory_maker(world_, place_.mesh, device_.device, std::chrono::seconds(config_.comm.init_timeout_seconds));
}

PlanRequest Trainer::plan_request(const MeshPlace& place, const ModelDescription& model) const {
  PlanRequest request = make_plan_request(config_, place, !device_.device.is_cpu());
  add_pipeline(request, config_, model);
  request.groups_of_one = config_.debug.groups_of_one && !world_.fake;
  return request;
}

void Trainer::build_model() {
  const ModelFamily& family = *find_model_family(config_.model.name);
  const ModelRequest request = make_model_request(config_, tokenizer_->vocabulary_size());
  description_ = family.describe(request);
  log_.info("Building {} {} with {}", description_.name, description_.flavor, description_.summary);
  const Plan plan = make_plan(description_, family, plan_request_);
  if (const std::optional<std::string> idle = precision_warning(plan)) log_.shared_warning(*idle);
  for (const std::string& line : precision_lines(plan)) log_.info(line);
  if (config_.model.print_after_conversion) {
    for (const std::string& line : converted_lines(plan)) log_.info(line);
  }
  check_memory(plan);
  ModelStrategies strategies = strategies_for(config_);
  strategies.attention_kernel = attention_kernel_for(plan);
  strategies.tell = [this](const std::string& what) { log_.shared_warning(what); };
  std::unique_ptr<WorkRecorder> recorder = recorder_for(plan);
  prove_programs(plan, recorder && records_microbatches(plan, groups_), [&](int64_t rank) {
    return make_plan(description_, family, plan_request({place_.mesh, rank}, description_));
  });
  with_memory_report([] { return "building the model"; },
                     [&] {
                       assembly_ = assemble(family, request, strategies, plan, groups_, device_.device, seed_,
                                            choose_kernels(config_, device_, log_), std::move(recorder));
                     });
  std::vector<std::string> names;
  for (const auto& parameter : assembly_.model->parameter_handles()) {
    all_parameters_.push_back(parameter.get());
    names.push_back(parameter->name());
  }
  model_groups_ = assign_parameter_groups(names, config_.optimizer.param_groups);
  with_memory_report([] { return "building the optimizer"; },
                     [&] {
                       optimizer_ = std::make_unique<Optimizer>(
                           assembly_.parameters, groups_of(model_groups_, all_parameters_, assembly_.parameters),
                           make_optimizer_options(config_), assembly_.optimizer_offload);
                     });
  step_runner_ =
      std::make_unique<StepRunner>(*assembly_.executor, *optimizer_, assembly_.group_parameters,
                                   config_.training.max_norm, StepCommunicators{groups_.loss, groups_.model});
  if (config_.training.spike_guard != "off") {
    const TrainingSection& training = config_.training;
    guard_ = std::make_unique<SpikeGuard>(
        SpikeGuardOptions{training.spike_window, training.spike_threshold, training.spike_guard == "skip"},
        device_.device);
    step_runner_->guard_with(guard_.get());
  }
  std::vector<std::string> notes;
  schedule_ = make_schedule(config_, notes);
  for (const std::string& note : notes) log_.shared_warning(note);
  const std::string& checkpointing = config_.activation_checkpoint.mode;
  if (checkpointing != "none") log_.info("Applied {} activation checkpointing to the model", checkpointing);
  for (const std::string& line : parallelism_lines(plan)) log_.info(line);
  log_.info("Model {} {} size: {} total parameters", description_.name, description_.flavor,
            with_thousands(description_.parameter_count()));
}

// Ranks choose alike, so that what all of them compute does not depend on which of them was slow for a moment.
AttentionKernel Trainer::attention_kernel_for(const Plan& plan) {
  if (device_.device.is_cpu() || plan.request.compute != ElementType::bfloat16) return AttentionKernel::cudnn;
  if (config_.debug.deterministic) {
    log_.info("Attention by {}: cuDNN's gradients vary from run to run", name(AttentionKernel::flash));
    return AttentionKernel::flash;
  }
  if (description_.block_causal) {
    log_.info("Attention by {}: documents are ever of other lengths, for each of which cuDNN makes a plan",
              name(AttentionKernel::flash));
    return AttentionKernel::flash;
  }
  const int64_t ranks = place_.mesh.size(MeshAxis::tp);
  const AttentionShape shape{plan.request.samples, plan.request.sequence_length / plan.request.split().ranks,
                             description_.heads / ranks, description_.kv_heads / ranks, description_.head_dim};
  const std::vector<KernelTiming> timings = time_kernels(
      [&](AttentionKernel kernel) { return measure_kernel(kernel, shape, at::kBFloat16, device_.device); });
  std::optional<AttentionKernel> chosen = choose_kernel(timings);
  if (!chosen) {
    throw Error(ExitCode::bad_config,
                fmt::format("no attention kernel takes [{}, {}, {}, {}] with {} heads of keys: {}", shape.samples,
                            shape.length, shape.heads, shape.head_dim, shape.kv_heads, timings.front().refusal));
  }
  log_.info(describe_choice(*chosen, timings));
  if (world_.store && world_.is_distributed()) {
    const std::string key = "attention/kernel";
    if (world_.rank == 0) world_.store->set(key, std::to_string(static_cast<int>(*chosen)));
    AttentionKernel agreed{};
    read_words(world_.store->get_to_str(key), 0, [&](const nlohmann::json& said) {
      agreed =
          std::array{AttentionKernel::cudnn, AttentionKernel::flash, AttentionKernel::efficient}.at(said.get<size_t>());
    });
    if (agreed != *chosen) log_.info("Attention by {}, as on rank 0", name(agreed));
    chosen = agreed;
  }
  return *chosen;
}

std::unique_ptr<WorkRecorder> Trainer::recorder_for(const Plan& plan) {
  if (!plan.request.cuda_graphs) return nullptr;
  if (const std::optional<std::string> reason = why_no_graphs(plan)) {
    log_.info("CUDA graphs are not used: {}", *reason);
    return nullptr;
  }
  log_.info("{} recorded as CUDA graphs in step 3 and replayed from then on",
            records_microbatches(plan, groups_) ? "Whole microbatches are" : "Blocks are");
  return device_.device.is_cuda() ? cuda().recorder(device_.device.index()) : nullptr;
}

void Trainer::open_data() {
  const BatchOptions options = make_batch_options(config_, description_.block_causal);
  std::string description;
  std::unique_ptr<ChunkSource> chunks = open_training_chunks(config_, place_, tokenizer_, options, description);
  data_description_ = fmt::format("{} from {}", config_.training.dataset, description);
  log_.info("Preparing {} dataset from {}", config_.training.dataset, description);
  if (splits_by_rank(config_, place_)) {
    const int64_t ranks = place_.mesh.data_parallel_degree();
    log_.shared_warning(
        "data.split = \"upstream\": each of {} data-parallel ranks reads a part of the corpus of its own, so this run "
        "can be resumed with {} of them only",
        ranks, ranks);
  }
  stream_ = std::make_unique<BatchStream>(std::move(chunks), make_batch_plan(config_, place_), options);
  if (config_.validation.enable && !world_.fake) {
    validator_ =
        std::make_unique<Validator>(config_, tokenizer_, description_.block_causal, place_, groups_.loss, log_);
  }
}

}  // namespace titan
