// The trainer's construction: tokenizer, model, weights, optimizer, data; and what the start shows of them.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/train/job.h"
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
    seed = std::stoull(world.store->get_to_str(key));
  }
  log.info("debug.seed is not given; this run draws its weights from seed {}", seed);
  return seed;
}

/// The cores that this rank may count on.
int64_t default_threads(const World& world) {
  return world.cores > 0 ? world.cores : std::thread::hardware_concurrency();
}

ModelStrategies strategies_for(const JobConfig& config) {
  const bool round = config.training.weight_gradient_dtype == "bfloat16";
  return {std::make_shared<DenseProducts>(round), config.training.loss_chunks, round};
}

}  // namespace

Trainer::Trainer(const JobConfig& config, const World& world, const Log& log)
    : config_(config), log_(log), colour_(log.colour() && !config.metrics.disable_color_printing), world_(world) {
  const int64_t threads = config.training.threads > 0 ? config.training.threads : default_threads(world);
  at::set_num_threads(static_cast<int>(threads));
  set_determinism(config);
  device_ = choose_device(config.training.device, world.local_rank);
  log_.info("{}: {} with {} memory, {} threads", device_.device.is_cpu() ? "CPU" : "CUDA capacity", device_.name,
            human_bytes(static_cast<double>(device_.memory_bytes)), threads);
  if (threads > std::thread::hardware_concurrency()) {
    log_.warning("training.threads = {} on {} processors: threads that wait for each other make every step slower",
                 threads, std::thread::hardware_concurrency());
  }
  with_remedy("name a folder that can be made and written in job.dump_folder",
              [&] { make_folders(config.job.dump_folder); });
  join_ranks();
  if (device_.device.is_cpu()) bytes_before_ = resident_bytes();
  seed_ = choose_seed(config, world, log);
  log_.info("Reading the tokenizer {}", tokenizer_location(config));
  tokenizer_ = open_tokenizer(tokenizer_location(config));
  log_.info(tokenizer_->description());
  build_model();
  open_data();
  if (config.checkpoint.enable) {
    checkpoints_ = std::make_unique<RunCheckpoints>(
        config, world_,
        RunParts{assembly_, *optimizer_, optimizer_groups_, schedule_, place_, groups_.world.get(), device_.device},
        log_);
  }
  const std::filesystem::path metrics = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
  if (world.rank == 0) metrics_ = std::make_unique<MetricsLog>(metrics, log_);
}

void Trainer::join_ranks() {
  place_ = {make_mesh(config_, world_.size), world_.rank};
  if (!world_.is_distributed()) return;
  log_.info(mesh_line(place_.mesh));
  groups_ = make_mesh_groups(place_.mesh, world_.rank, std::chrono::seconds(config_.comm.init_timeout_seconds),
                             communicator_maker(world_, device_.device));
  if (device_.device.is_cpu()) {
    groups_.make_peer_memory =
        peer_memory_maker(world_, place_.mesh, std::chrono::seconds(config_.comm.init_timeout_seconds));
  }
}

void Trainer::build_model() {
  const ModelFamily& family = *find_model_family(config_.model.name);
  const ModelRequest request = make_model_request(config_, tokenizer_->vocabulary_size());
  description_ = family.describe(request);
  log_.info("Building {} {} with {}", description_.name, description_.flavor, description_.summary);
  for (const std::string& note : family.notes(request)) log_.info(note);
  const Plan plan = make_plan(description_, family, make_plan_request(config_, place_));
  assembly_ = assemble(family, request, strategies_for(config_), plan, groups_, device_.device, seed_);
  std::vector<std::string> names;
  for (const Parameter* parameter : assembly_.parameters) names.push_back(parameter->name());
  optimizer_groups_ = assign_parameter_groups(names, config_.optimizer.param_groups);
  optimizer_ = std::make_unique<Optimizer>(assembly_.parameters, optimizer_groups_, make_optimizer_options(config_));
  step_runner_ = std::make_unique<StepRunner>(*assembly_.executor, *optimizer_, assembly_.group_parameters,
                                              StepOptions{config_.training.max_norm, plan.request.step_in_backward},
                                              StepCommunicators{groups_.loss, groups_.model});
  std::vector<std::string> notes;
  schedule_ = make_schedule(config_, notes);
  for (const std::string& note : notes) log_.warning(note);
  for (const std::string& line : parallelism_lines(plan)) log_.info(line);
  log_.info("Model {} {} size: {} total parameters", description_.name, description_.flavor,
            with_thousands(description_.parameter_count()));
}

void Trainer::open_data() {
  BatchOptions options;
  options.dataset = config_.training.dataset;
  options.restart_positions = description_.block_causal;
  options.queue_depth = config_.data.prefetch;
  options.timeout = std::chrono::seconds(config_.data.timeout);
  std::unique_ptr<DocumentSource> source = open_dataset(make_training_dataset(config_));
  log_.info("Preparing {} dataset from {}", config_.training.dataset, source->description());
  stream_ = std::make_unique<BatchStream>(std::move(source), tokenizer_, make_batch_plan(config_, place_), options);
  if (config_.validation.enable) {
    validator_ =
        std::make_unique<Validator>(config_, tokenizer_, description_.block_causal, place_, groups_.loss, log_);
  }
}

}  // namespace titan
