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
#include "titan/model/initialise.h"
#include "titan/train/job.h"
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

uint64_t choose_seed(const JobConfig& config, const Log& log) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  std::random_device source;
  const uint64_t seed = (uint64_t{source()} << 32 | source()) >> 1;
  log.info("debug.seed is not given; this run draws its weights from seed {}", seed);
  return seed;
}

ModelStrategies strategies_for(const JobConfig& config) {
  const bool round = config.training.weight_gradient_dtype == "bfloat16";
  return {std::make_shared<DenseProducts>(round), config.training.loss_chunks, round};
}

}  // namespace

Trainer::Trainer(const JobConfig& config, const Log& log)
    : config_(config), log_(log), colour_(log.colour() && !config.metrics.disable_color_printing) {
  const int64_t threads = config.training.threads > 0 ? config.training.threads : std::thread::hardware_concurrency();
  at::set_num_threads(static_cast<int>(threads));
  set_determinism(config);
  device_ = choose_device(config.training.device);
  log_.info("{}: {} with {} memory, {} threads", device_.device.is_cpu() ? "CPU" : "CUDA capacity", device_.name,
            human_bytes(static_cast<double>(device_.memory_bytes)), threads);
  if (threads > std::thread::hardware_concurrency()) {
    log_.warning("training.threads = {} on {} processors: threads that wait for each other make every step slower",
                 threads, std::thread::hardware_concurrency());
  }
  with_remedy("name a folder that can be made and written in job.dump_folder",
              [&] { make_folders(config.job.dump_folder); });
  if (device_.device.is_cpu()) bytes_before_ = resident_bytes();
  seed_ = choose_seed(config, log);
  log_.info("Reading the tokenizer {}", tokenizer_location(config));
  tokenizer_ = open_tokenizer(tokenizer_location(config));
  log_.info(tokenizer_->description());
  build_model();
  open_data();
  metrics_ = std::make_unique<MetricsLog>(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", log_);
}

void Trainer::build_model() {
  const ModelFamily& family = *find_model_family(config_.model.name);
  const ModelRequest request = make_model_request(config_, tokenizer_->vocabulary_size());
  description_ = family.describe(request);
  log_.info("Building {} {} with {}", description_.name, description_.flavor, description_.summary);
  for (const std::string& note : family.notes(request)) log_.info(note);
  model_ = family.build(request, strategies_for(config_));
  model_->prepare(device_.device);
  const Plan plan = make_plan(description_, family, make_plan_request(config_));

  std::vector<std::unique_ptr<Residency>> residencies;
  std::vector<std::vector<Parameter*>> group_parameters;
  for (const WeightGroupPlan& group : plan.groups) {
    std::vector<Parameter*> members;
    for (const ParameterSpec& spec : group.parameters) members.push_back(&model_->parameter(spec.name));
    residencies.push_back(
        std::make_unique<ResidentWeights>(group, members, plan.request, device_.device, plan.request.step_in_backward));
    group_parameters.push_back(std::move(members));
  }
  std::vector<std::string> names;
  for (const auto& parameter : model_->parameter_handles()) {
    initialise(*parameter, parameter->layout().first_box(), seed_);
    parameters_.push_back(parameter.get());
    names.push_back(parameter->name());
  }
  model_->refresh_tree();
  executor_ =
      std::make_unique<Executor>(plan, model_->chain(), std::move(residencies), std::make_unique<EagerRunner>());
  optimizer_groups_ = assign_parameter_groups(names, config_.optimizer.param_groups);
  optimizer_ = std::make_unique<Optimizer>(parameters_, optimizer_groups_, make_optimizer_options(config_));
  step_runner_ = std::make_unique<StepRunner>(*executor_, *optimizer_, parameters_, std::move(group_parameters),
                                              StepOptions{config_.training.max_norm, plan.request.step_in_backward});
  std::vector<std::string> notes;
  schedule_ = make_schedule(config_, notes);
  for (const std::string& note : notes) log_.warning(note);
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
  stream_ = std::make_unique<BatchStream>(std::move(source), tokenizer_, make_batch_plan(config_), options);
  if (config_.validation.enable) {
    validator_ = std::make_unique<Validator>(config_, tokenizer_, description_.block_causal, log_);
  }
}

}  // namespace titan
