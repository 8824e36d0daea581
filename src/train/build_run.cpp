// Builds a run, and logs what it builds: device, ranks, tokenizer, model, weights, optimizer, data.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <random>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "attention_choice.h"
#include "finding_exchange.h"
#include "run_checkpoints.h"
#include "run_memory.h"
#include "run_reporter.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/checkpoint/save.h"
#include "titan/corpus/vocabulary.h"
#include "titan/estimate/plan_report.h"
#include "titan/job/job.h"
#include "titan/job/pipeline_job.h"
#include "titan/plan/plan.h"
#include "titan/plan/program.h"
#include "titan/report/attempt_record.h"
#include "titan/stream/megatron_order.h"
#include "titan/train/compile.h"
#include "titan/train/generate.h"
#include "titan/train/open_data.h"
#include "titan/train/run.h"
#include "titan/train/run_folder.h"
#include "titan/train/start_report.h"
#include "titan/train/state_check.h"
#include "titan/train/threads.h"
#include "titan/train/validator.h"

namespace titan {
namespace {

void set_determinism(const JobConfig& config) {
  if (!config.debug.deterministic) return;
  // With several streams, cuBLAS gives the same bits in each run only with a workspace of a fixed size.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, config.debug.deterministic_warn_only);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  TITAN_CHECK(context.deterministicAlgorithms() && context.deterministicCuDNN() && !context.benchmarkCuDNN());
}

void set_reductions(const JobConfig& config) {
  const bool reduced = config.training.allow_bf16_reduced_precision_reduction;
  at::globalContext().setAllowBF16ReductionCuBLAS(reduced);
  const auto kept = at::globalContext().allowBF16ReductionCuBLAS();
  TITAN_CHECK((kept == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK) == reduced, reduced);
}

/// Variables that make LibTorch's libraries compute fp32 products less exactly, whatever the config says.
void warn_of_inexact_products(const Log& log) {
  constexpr std::array<std::pair<const char*, std::string_view>, 4> kVariables{{
      {"ONEDNN_DEFAULT_FPMATH_MODE", "STRICT"},
      {"DNNL_DEFAULT_FPMATH_MODE", "STRICT"},
      {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "0"},
      {"NVIDIA_TF32_OVERRIDE", "0"},
  }};
  for (const auto& [name, exact] : kVariables) {
    const char* const value = std::getenv(name);
    if (!value || !*value || value == exact) continue;
    log.shared_warning("{} = {} lets products of fp32 be computed in fewer bits; unset it for exact ones", name, value);
  }
}

/// The seed of the config, or a random one that rank 0 shares with all ranks.
uint64_t choose_seed(const JobConfig& config, const World& world, const Log& log) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  uint64_t seed = 0;
  if (world.rank == 0 || !world.store) {
    std::random_device source;
    seed = (uint64_t{source()} << 32 | source()) >> 1;  // debug.seed, which repeats the run, is signed
  }
  if (world.store) {
    const std::string key = "seed";
    if (world.rank == 0) world.store->set(key, std::to_string(seed));
    read_words(world.store->get_to_str(key), 0, [&](const nlohmann::json& said) { seed = said.get<uint64_t>(); });
  }
  log.info("debug.seed is not given; weights that are not loaded are drawn from seed {}", seed);
  return seed;
}

/// Up to this number of ranks, rank 0 verifies the programs of all ranks together. It makes the plan of each for that,
/// so the time before the first step grows with the ranks.
constexpr int64_t kRanksProvedTogether = 64;

/// Throws InvariantError unless the programs of `plan`, and in a small job those of all ranks, are valid: no value is
/// used before it is produced, and every message and collective has its counterpart on the other ranks.
void prove_programs(const Plan& plan, const std::function<Plan(int64_t rank)>& plan_of) {
  std::vector<std::vector<Program>> programs{checked_programs(plan)};
  const std::string problem = program_problem(plan, programs[0]);
  TITAN_CHECK(problem.empty(), problem);
  const int64_t world = plan.request.place.mesh.world();
  if (plan.request.place.rank != 0 || world == 1 || world > kRanksProvedTogether) return;
  std::vector<Plan> plans{plan};
  for (int64_t rank = 1; rank < world; ++rank) {
    plans.push_back(plan_of(rank));
    programs.push_back(checked_programs(plans.back()));
  }
  std::vector<RankPrograms> ranks;
  for (size_t r = 0; r < plans.size(); ++r) ranks.push_back({&plans[r], programs[r]});
  const std::string between_ranks = mesh_problem(ranks);
  TITAN_CHECK(between_ranks.empty(), between_ranks);
}

ModelStrategies strategies_for(const TrainingSection& training) {
  const bool round = training.weight_gradient_dtype == ElementType::bfloat16;
  return {std::make_shared<DenseProducts>(round), {.chunks = training.loss_chunks, .round_weight_gradient = round}};
}

/// Parameter groups of the whole model, restricted to the parameters of this rank.
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

PlanRequest plan_request(const Run& run, const MeshPlace& place, const ModelDescription& model) {
  PlanRequest request = make_plan_request(run.config, place, !run.device.device.is_cpu());
  add_pipeline(request, run.config, model);
  if (run.device.device.is_cpu()) request.training.threads = at::get_num_threads();
  request.groups_of_one = run.config.debug.groups_of_one && !run.world.fake;
  return request;
}

/// Sets the number of threads, and says in one line what makes it smaller than that of the processors, or than wanted.
int64_t set_threads(const Run& run) {
  const int64_t wanted = run.config.training.threads;
  const int64_t processors = run.world.cores > 0 ? run.world.cores : usable_processors();
  const ThreadTeam team = use_threads(wanted > 0 ? wanted : default_threads(processors));
  if (!team.reason.empty()) {
    run.log.shared_warning("{}: this run computes with {}", team.reason, team.threads);
  } else if (wanted == 0 && team.threads < processors) {
    run.log.info("OMP_NUM_THREADS = {} is less than {} processors: training.threads = 0 follows it", team.threads,
                 processors);
  }
  // The rendezvous has compared the threads of several ranks with their share of the host's cores.
  const int64_t most = run.world.is_distributed() ? machine_cores() : processors;
  if (team.threads > most) {
    run.log.shared_warning(
        "training.threads = {} on {} processors: threads that wait for each other make every step slower", team.threads,
        most);
  }
  return team.threads;
}

void set_up_device(Run& run) {
  const JobConfig& config = run.config;
  const int64_t threads = set_threads(run);
  set_determinism(config);
  warn_of_inexact_products(run.log);
  set_reductions(config);
  run.device = choose_device(config.training.device, run.world.local_rank);
  run.log.info("{}: {} with {} memory, {} thread{}", run.device.device.is_cpu() ? "CPU" : "CUDA capacity",
               run.device.name, human_bytes(static_cast<double>(run.device.memory_bytes)), threads,
               threads == 1 ? "" : "s");
  // Reported before the start, but for a host with different GPUs whose launcher names no local ranks: there the check
  // has seen another GPU than this one.
  DeviceFacts facts = device_facts(run.device);
  facts.trains = run.trains;
  const std::vector<Problem> problems = device_problems(config, {}, facts);
  std::vector<std::string> sentences;
  for (const Problem& problem : problems) sentences.push_back(problem.what + "; " + problem.remedy);
  if (!sentences.empty()) throw Error(ExitCode::bad_config, join(sentences, "\n"));
}

void open_folder(Run& run) {
  const std::string& folder = run.config.job.dump_folder;
  with_remedy("name a folder that can be made and written in job.dump_folder", [&] { make_folders(folder); });
  if (run.world.rank != 0 || run.world.fake) return;
  const std::string launcher = run.world.launcher.empty() ? "a single process" : run.world.launcher;
  run.folder = std::make_unique<RunFolder>(
      folder, fmt::format("{}, rank 0 on {}, process {}", launcher, host_name(), ::getpid()), run.log);
  if (run.trains) forget_attempt(folder);
}

void connect_ranks(Run& run) {
  const JobConfig& config = run.config;
  World& world = run.world;
  const std::chrono::seconds timeout(config.comm.init_timeout_seconds);
  run.place = {make_mesh(config, world.size), world.rank};
  run.share = make_sequence_share(config, run.place);
  const bool groups_of_one = config.debug.groups_of_one && !world.fake;
  if (!world.is_distributed() && !groups_of_one) return;
  if (world.is_distributed()) run.log.info(mesh_line(run.place.mesh));
  if (!world.store && groups_of_one) world.store = c10::make_intrusive<c10d::HashStore>();
  // NCCL refuses several ranks on one GPU of a host, so each rank gets its own host id.
  if (config.debug.share_gpu) ::setenv("NCCL_HOSTID", fmt::format("titan-{}", world.rank).c_str(), /*overwrite=*/0);
  TransportOptions transport{.shared_memory = config.comm.shared_memory, .refused = {}};
  transport.refused = [&run](const std::string& reason) {
    run.log.shared_warning(
        "The ranks of this host cannot share memory ({}); they communicate through sockets, which is slower", reason);
  };
  // The units and the shared weights do not depend on the vocabulary, which may come from the tokenizer.
  const ModelDescription model = describe_model(config, 1);
  const PlanRequest request = plan_request(run, run.place, model);
  run.communicators = make_mesh_communicators(run.place.mesh, world.rank, timeout,
                                              communicator_maker(world, run.device.device, transport), groups_of_one,
                                              tied_ranks_of(request, model), weight_communicators(model, request));
  for (Communicator* communicator : run.communicators.all()) communicator->record_in(world.trace);
  if (run.communicators.world) run.log.info("Ranks communicate through {}", run.communicators.world->transport());
  run.communicators.make_peer_memory = peer_memory_maker(world, run.place.mesh, run.device.device, timeout);
}

/// Captures this plan's work as CUDA graphs; null: eager execution.
std::unique_ptr<GraphCapture> capture_for(const Run& run, const Plan& plan) {
  if (!plan.request.cuda_graphs) return nullptr;
  if (const std::optional<std::string> reason = why_no_graphs(plan.request)) {
    run.log.info("CUDA graphs are not used: {}", *reason);
    return nullptr;
  }
  run.log.info("{} recorded as CUDA graphs in step 3 and replayed from then on",
               plan.records_microbatches() ? "Whole microbatches are" : "Blocks are");
  if (!run.device.device.is_cuda()) return nullptr;
  std::unique_ptr<GraphCapture> capture = cuda().recorder(run.device.device.index());
  capture->given_up = [&log = run.log](const std::string& reason) {
    log.warning(
        "the step fits in the GPU's memory, but not as CUDA graphs, so it runs without them: {}; "
        "compile.cuda_graphs = false leaves them out from the start",
        reason);
  };
  return capture;
}

/// Describes, plans, verifies and builds the model; initialises its weights if there is a seed.
void build_model(Run& run, std::optional<uint64_t> seed) {
  const JobConfig& config = run.config;
  const Log& log = run.log;
  const ModelRequest request = make_model_request(config, run.data.tokenizer->vocabulary_size());
  const ModelDescription& description = run.model.description =
      describe_model(config, run.data.tokenizer->vocabulary_size());
  log.info("Building {} {} with {}", description.name, description.flavor, description.summary);
  const auto plan_of = [&, chunks = run.memory->settle_loss_chunks()](int64_t rank) {
    PlanRequest asked = plan_request(run, {run.place.mesh, rank}, description);
    asked.training.loss_chunks = chunks;
    return make_plan(description, asked);
  };
  const Plan plan = plan_of(run.place.rank);
  if (const std::optional<std::string> idle = precision_warning(plan)) log.shared_warning(*idle);
  for (const std::string& line : precision_lines(plan)) log.info(line);
  if (config.model.print_after_conversion) {
    for (const std::string& line : converted_lines(plan)) log.info(line);
  }
  if (run.trains) run.memory->check(plan);
  ModelStrategies strategies = strategies_for(plan.request.training);
  run.memory->watch([] { return "measuring attention"; },
                    [&] { strategies.attention_kernel = attention_kernel_for(run, plan); });
  strategies.warn = [&log](const std::string& what) { log.shared_warning(what); };
  std::unique_ptr<GraphCapture> recorder = capture_for(run, plan);
  prove_programs(plan, plan_of);
  run.memory->watch([] { return "building the model"; },
                    [&] {
                      run.model.assembly = assemble(*find_model_family(request.model.name), request, strategies, plan,
                                                    run.communicators, run.device.device, seed,
                                                    choose_kernels(config, run.device, log), std::move(recorder));
                    });
  for (const auto& parameter : run.model.assembly.model->parameter_handles()) {
    run.model.parameters.push_back(parameter.get());
  }
  // The plan has frozen those of this rank; a debug dump asks every rank about the parameters of all stages.
  for (const UnitDescription& unit : description.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!parameter.trainable) run.model.assembly.model->parameter(parameter.name).freeze();
    }
  }
}

/// Builds what changes the weights: optimizer with its groups, learning-rate schedule, guard, and step runner.
void build_optimizer(Run& run) {
  const TrainingSection& training = run.config.training;
  Run::Model& model = run.model;
  std::vector<std::string> names;
  for (const Parameter* parameter : model.parameters) names.push_back(parameter->name());
  model.parameter_groups = assign_parameter_groups(names, run.config.optimizer.param_groups);
  Assembly& assembly = model.assembly;
  run.memory->watch([] { return "building the optimizer"; },
                    [&] {
                      model.optimizer = make_optimizer(
                          assembly.parameters, groups_of(model.parameter_groups, model.parameters, assembly.parameters),
                          // A run without a seed must also round identically after a restart.
                          model.plan(), static_cast<uint64_t>(run.config.debug.seed.value_or(0)),
                          assembly.optimizer_offload);
                    });
  model.step_runner =
      std::make_unique<StepRunner>(*assembly.executor, *model.optimizer, assembly.group_parameters, training.max_norm,
                                   StepCommunicators{run.communicators.loss, run.communicators.model,
                                                     run.communicators.of_weights, run.communicators.tensor});
  if (training.spike_guard != "off") {
    model.guard = std::make_unique<SpikeGuard>(training.spike_window, training.spike_threshold,
                                               /*skips=*/training.spike_guard == "skip", run.device.device);
    model.step_runner->guard_with(model.guard.get());
  }
  std::vector<std::string> notes;
  model.schedule = make_schedule(run.config, notes);
  for (const std::string& note : notes) run.log.shared_warning(note);
}

void report_model(const Run& run) {
  const std::string& checkpointing = run.config.activation_checkpoint.mode;
  if (checkpointing != "none") run.log.info("Applied {} activation checkpointing to the model", checkpointing);
  for (const std::string& line : parallelism_lines(run.model.plan())) run.log.info(line);
  const ModelDescription& model = run.model.description;
  run.log.info("Model {} {} size: {} total parameters", model.name, model.flavor,
               with_thousands(model.parameter_count()));
}

void read_tokenizer(Run& run) {
  run.log.info("Reading the tokenizer {}", tokenizer_location(run.config));
  run.data.tokenizer = open_vocabulary(tokenizer_location(run.config));
  run.log.info(run.data.tokenizer->description());
  for (const std::string& notice : run.data.tokenizer->notices()) run.log.shared_warning(notice);
}

void open_data(Run& run) {
  const JobConfig& config = run.config;
  const BatchOptions options = make_batch_options(config, run.model.description.block_causal);
  std::string description;
  std::unique_ptr<ChunkSource> chunks =
      open_training_chunks(config, run.place, run.data.tokenizer, options, description);
  run.data.description = fmt::format("{} from {}", config.training.dataset, description);
  run.log.info("Preparing {} dataset from {}", config.training.dataset, description);
  if (const auto* samples = dynamic_cast<const MegatronStream*>(chunks.get())) {
    const MegatronOrder& order = samples->order();  // a large one takes minutes
    run.log.info("Megatron's order: {} samples in {} epoch{}, computed in {:.1f} s", with_thousands(order.samples()),
                 order.epochs(), order.epochs() == 1 ? "" : "s", order.seconds());
  }
  if (splits_by_rank(config, run.place)) {
    const int64_t ranks = run.place.mesh.data_parallel_degree();
    run.log.shared_warning(
        "data.split = \"upstream\": each of {} data-parallel ranks reads a part of the corpus of its own, so this run "
        "can be resumed with {} of them only",
        ranks, ranks);
  }
  const BatchPlan batch = make_batch_plan(config, run.place);
  run.data.tokens_per_step = batch.global_batch() * batch.sequence_length;
  run.data.stream = std::make_unique<BatchStream>(std::move(chunks), batch, options);
  if (config.validation.enable && !run.world.fake) {
    run.validator = std::make_unique<Validator>(config, run.data.tokenizer, run.model.description.block_causal,
                                                run.place, run.communicators.loss, run.log);
  }
}

void open_checkpoints(Run& run) {
  if (!run.config.checkpoint.enable || run.world.fake) return;
  run.checkpoints = std::make_unique<RunCheckpoints>(run);
}

void open_checks(Run& run) {
  run.findings = std::make_unique<FindingExchange>(run);
  if (run.world.fake) return;
  run.state_check = std::make_unique<StateCheck>(run);
  if (const std::string line = run.state_check->describe(); !line.empty()) run.log.info(line);
}

/// What looks at weights and moments before a step changes them.
void watch_changes(Run& run) {
  run.model.step_runner->before_change([&run] {
    if (run.state_check) run.state_check->before_change();
    if (!run.checkpoints) return;
    const auto start = std::chrono::steady_clock::now();
    run.checkpoints->before_change();
    run.reporter->exclude_since(start);
  });
}

}  // namespace

std::unique_ptr<Run> build_run(const JobConfig& config, const World& world, const Log& log) {
  const CheckpointSection& checkpoint = config.checkpoint;
  TITAN_CHECK(!checkpoint.enable || !checkpoint.create_seed_checkpoint || !world.is_distributed(), world.size);
  auto run = std::make_unique<Run>(config, world, log);
  set_up_device(*run);
  open_folder(*run);
  connect_ranks(*run);
  run->memory = std::make_unique<RunMemory>(*run);
  run->reporter = std::make_unique<RunReporter>(*run);
  const uint64_t seed = choose_seed(config, world, log);
  read_tokenizer(*run);
  check_samples(*run);
  build_model(*run, seed);
  build_optimizer(*run);
  report_model(*run);
  open_data(*run);
  open_checkpoints(*run);
  open_checks(*run);
  watch_changes(*run);
  return run;
}

std::unique_ptr<Run> build_inference(const JobConfig& config, const World& world, const Log& log) {
  auto run = std::make_unique<Run>(config, world, log);
  run->trains = false;
  set_up_device(*run);
  connect_ranks(*run);
  run->memory = std::make_unique<RunMemory>(*run);
  read_tokenizer(*run);
  build_model(*run, /*seed=*/std::nullopt);
  RunCheckpoints(*run).load_initial();
  run->model.assembly.executor->weights_changed();
  return run;
}

}  // namespace titan
