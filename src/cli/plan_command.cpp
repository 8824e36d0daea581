// titan_train plan: shows what a config does on any number of ranks, without starting one.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/cli/commands.h"
#include "titan/cli/program.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/config/section.h"
#include "titan/estimate/plan_report.h"
#include "titan/estimate/planned_job.h"
#include "titan/estimate/prediction.h"
#include "titan/job/checks.h"
#include "titan/job/device_problems.h"
#include "titan/plan/program.h"

namespace titan {
namespace {

struct PlanOptions {
  std::optional<int64_t> world;  // default: the number that the config's degrees require
  int64_t rank = 0;
  bool verbose = false;
  bool program = false;
  std::optional<std::string> gpu;    // predict fit and step time for GPUs of this name; none: no prediction
  std::optional<double> gpu_memory;  // GiB of that GPU; none: as the table says
  std::string trace;                 // output file of the simulated step
  bool search = false;
  bool json = false;
  std::vector<std::string> rest;  // the config and its overrides
};

std::optional<PlanOptions> parse_plan(std::span<const std::string> arguments) {
  PlanOptions options;
  CLI::App app("Print layouts, communication and memory of a run on any number of ranks", "titan_train plan");
  app.add_option("--world", options.world, "Number of ranks; else as many as the degrees ask for")
      ->check(CLI::Range(int64_t{1}, kMostRanks));
  app.add_option("--rank", options.rank, "The rank whose parts are shown")
      ->check(CLI::Range(int64_t{0}, kMostRanks - 1));
  app.add_flag("--verbose", options.verbose,
               "Print also the traffic of each unit, and shape and layout of every parameter");
  app.add_flag("--program", options.program,
               "Print also the program of a step: every instruction of the rank, in order");
  app.add_option("--gpu", options.gpu,
                 "Whether it fits, and how long a step takes, on " + join(hardware_names(), ", ") +
                     ", or a TOML file with one such table");
  app.add_option("--gpu-memory", options.gpu_memory, "GiB of memory of that GPU, instead of the table's")
      ->needs("--gpu")
      ->check(CLI::Range(1.0, 1e6));
  const auto is_drawn = [](const std::string& file) {
    return file.ends_with(".json") || file.ends_with(".svg") ? "" : file + " ends with neither .json nor .svg";
  };
  app.add_option("--trace", options.trace,
                 "File for the simulated step: .json for chrome://tracing or Perfetto, .svg for a picture; needs --gpu")
      ->needs("--gpu")
      ->check(is_drawn);
  app.add_flag("--search", options.search,
               "Print also the fastest layouts that fit, with the same ranks and global batch")
      ->needs("--gpu");
  app.add_flag("--json", options.json, "Memory, verdict and time as JSON, nothing else")->needs("--gpu");
  app.allow_extras();
  app.footer(
      "A config file and --section.key options follow, as for training.\n\n"
      "Example:\n  titan_train plan configs/llama3_8b.toml --world 256");
  if (!parse_words(app, arguments, std::cout)) return std::nullopt;
  if (options.json && (options.search || options.program || options.verbose || !options.trace.empty())) {
    throw Error(ExitCode::bad_config,
                "plan: --json prints nothing else; leave out --search, --trace, --program and --verbose");
  }
  options.rest = app.remaining();
  return options;
}

std::string shape(const std::vector<int64_t>& sizes) {
  std::vector<std::string> words;
  for (int64_t size : sizes) words.push_back(std::to_string(size));
  return "[" + join(words, ", ") + "]";
}

std::string in_words(const Exchange& exchange) {
  return fmt::format("{} {} {} × {} bytes", exchange.communicator, name(exchange.kind), exchange.traffic.calls,
                     with_thousands(exchange.traffic.bytes / std::max<int64_t>(1, exchange.traffic.calls)));
}

/// How much of a group is trained; empty if all of it is.
std::string trained_words(const WeightGroupPlan& group) {
  if (!group.is_trained()) return ", frozen";
  const int64_t trained = group.trained_shard_numel();
  return trained == group.shard_numel ? "" : fmt::format(", {} of them trained", with_thousands(trained));
}

/// Which optimizer updates a parameter as a whole, and on which rank; empty if each element has an update of its own.
std::string owner_words(const Plan& plan, const WeightGroupPlan& group, size_t index) {
  const ParameterPlan& parameter = group.parameters[index];
  const UpdateDescription& update = plan.request.updates[parameter.update];
  if (!parameter.spec.trainable || !update.whole_matrices) return {};
  std::string words = fmt::format("; {}", word_of(update.optimizer));
  for (const WholeMatrix& matrix : group.matrices) {
    if (matrix.parameter == index) words += fmt::format(" on rank {} of {}", matrix.owner, group.matrix_communicator);
  }
  return words;
}

/// A group's description without its name, so that groups of a kind have equal text.
std::string described(const Plan& plan, const WeightGroupPlan& group, const std::vector<Exchange>& exchanges) {
  std::string gradient;
  if (group.is_trained() && group.narrows_gradient())
    gradient = fmt::format(", gradient reduced in {}", name(group.reduce));
  if (group.is_trained() && group.gradient != ElementType::float32) {
    gradient = fmt::format(", gradient in {}", name(group.gradient));
  }
  std::string text =
      fmt::format("{} elements, {} owned{}; {}{}\n", with_thousands(group.numel), with_thousands(group.shard_numel),
                  trained_words(group), name(group.compute), gradient);
  std::vector<std::string> sent;
  for (const Exchange& exchange : exchanges) sent.push_back(in_words(exchange));
  text += sent.empty() ? "" : fmt::format("  each step: {}\n", join(sent, "; "));
  if (group.gathers_float8) text += "  float8 weights are gathered as float8\n";
  for (size_t p = 0; p < group.parameters.size(); ++p) {
    const ParameterPlan& parameter = group.parameters[p];
    const std::string& whole = parameter.spec.name;
    const bool within = whole.starts_with(group.name + ".");
    text +=
        fmt::format("  {:<30} {:<16} {}{}\n  {:<30} seen {}, owned {} from {}\n",
                    within ? whole.substr(group.name.size() + 1) : whole, shape(parameter.spec.shape),
                    layout_words(parameter.layout), owner_words(plan, group, p), "", shape(parameter.unsharded.extent),
                    shape(parameter.shard.extent), shape(parameter.shard.offset));
  }
  return text;
}

/// Consecutive equal groups are printed once.
void print_groups(const Plan& plan) {
  const std::vector<std::vector<Exchange>> exchanges = weight_exchanges(plan);
  for (size_t first = 0, end = 0; first < plan.groups.size(); first = end) {
    const std::string text = described(plan, plan.groups[first], exchanges[first]);
    for (end = first + 1; end < plan.groups.size(); ++end) {
      if (described(plan, plan.groups[end], exchanges[end]) != text) break;
    }
    std::cout << '\n' << plan.groups[first].name;
    if (end - first > 1) std::cout << fmt::format(" to {}, {} alike", plan.groups[end - 1].name, end - first);
    std::cout << ": " << text;
  }
}

void print_program(const Plan& plan, const char* name, const Program& program, int64_t times) {
  std::cout << fmt::format("\n{}{}: {} instructions\n", name, times > 1 ? fmt::format(", {} times", times) : "",
                           program.actions.size());
  for (size_t i = 0; i < program.actions.size(); ++i) {
    std::cout << fmt::format("{:>5}  {}\n", i + 1, to_line(plan, program.actions[i]));
  }
}

/// A step that starts in the final state of the previous step, then a validation.
void print_programs(const Plan& plan) {
  const std::vector<RepeatedProgram> step = step_programs(plan, settled_state(plan));
  for (size_t i = 0; i < step.size(); ++i) {
    const char* name = i + 1 == step.size() ? "update" : i + 2 == step.size() ? "last pass" : "pass";
    print_program(plan, name, step[i].program, step[i].times);
  }
  if (!plan.request.validation.enable) return;
  const WeightState& entry = step.back().program.exit;
  print_program(plan, "validation", expand(plan, ProgramKind::evaluation, entry), 1);
}

/// The source of the number of ranks, unless it was given to this command.
const char* words_for_world(const PlanOptions& options, const JobConfig& config) {
  if (options.world) return "";
  return config.comm.world_size ? ", as comm.world_size says (--world: other numbers)"
                                : ", as the degrees ask for at least (--world: other numbers)";
}

/// Throws Error(bad_config) if no rank has the number asked for.
void check_rank(const PlanOptions& options, const JobConfig& config, int64_t world) {
  if (options.rank < world) return;
  const char* asks = config.comm.world_size ? "comm.world_size says" : "the degrees ask for";
  throw Error(ExitCode::bad_config,
              fmt::format("plan: --rank {} is not below {}", options.rank,
                          options.world ? fmt::format("--world {}", world)
                                        : fmt::format("the {} that {}; give --world, too", world, asks)));
}

/// Throws Error(bad_config) if its hosts do not hold `world` ranks evenly.
Hardware hardware_of(const std::string& gpu, int64_t world) {
  Hardware hardware = find_hardware(gpu);
  if (world > hardware.gpus_per_host && world % hardware.gpus_per_host != 0) {
    throw Error(ExitCode::bad_config,
                fmt::format("plan: hosts of {} hold {} GPUs, and {} is not a multiple of that; give another --world, "
                            "or a file with another gpus_per_host to --gpu",
                            hardware.name, hardware.gpus_per_host, world));
  }
  return hardware;
}

/// What is known of the device without one: training.device, and with --gpu the ranks of a host.
DeviceFacts planned_facts(const PlanOptions& options, const JobConfig& config, int64_t world) {
  DeviceFacts facts = stated_facts(config);
  if (!options.gpu) return facts;
  facts.kind = DeviceFacts::Kind::gpu;
  facts.name = *options.gpu;
  try {
    const int64_t most = find_hardware(*options.gpu).gpus_per_host;
    if (world > most) facts.host_ranks = most;
  } catch (const Error&) {  // an unknown name: reported after the config's problems
  }
  return facts;
}

void print_plan(const PlanOptions& options, const JobConfig& config, const PlannedJob& job, int64_t world) {
  const Plan& plan = job.plan;
  std::cout << mesh_line(job.place.mesh) << fmt::format("; rank {} of {}", options.rank, world)
            << words_for_world(options, config) << '\n';
  std::cout << fmt::format("{} {}: {}\n{} parameters\n", job.model.name, job.model.flavor, job.model.summary,
                           with_thousands(plan.parameter_count));
  if (const std::optional<std::string> idle = precision_warning(plan)) std::cout << "warning: " << *idle << '\n';
  for (const std::string& line : precision_lines(plan)) std::cout << line << '\n';
  std::cout << fmt::format("\nmemory of rank {}:\n", options.rank);
  for (const std::string& line : memory_table(plan)) std::cout << line << '\n';
  std::cout << "\nper step:\n";
  for (const std::string& line : parallelism_lines(plan)) std::cout << line << '\n';
  if (plan.traffic.empty()) std::cout << "  no communication\n";
  for (const std::string& line : offload_lines(plan)) std::cout << line << '\n';
  if (options.verbose) print_groups(plan);
  if (options.program) print_programs(plan);
}

void print_prediction(const PlanOptions& options, const JobConfig& config, const PlannedJob& job, int64_t world,
                      const Hardware& hardware) {
  const ModelDescription& model = job.model;
  const Prediction prediction = predict(config, model, world, hardware, !options.trace.empty());
  std::cout << '\n';
  for (const std::string& line : prediction_lines(prediction, config, model)) std::cout << line << '\n';
  if (!options.trace.empty()) {
    const std::string title = fmt::format("{} {} on {} × {}", model.name, model.flavor, world, hardware.name);
    replace_file(options.trace,
                 options.trace.ends_with(".svg")
                     ? step_svg(prediction.step, {title, mesh_line(job.place.mesh), speed_line(prediction)})
                     : chrome_trace(prediction.step));
    std::cout << "wrote " << options.trace << '\n';
  }
  if (!options.search) return;
  std::cout << "\nother layouts of as many GPUs and the same global batch, fastest first:\n";
  for (const std::string& line : search_lines(config, model, world, hardware)) std::cout << line << '\n';
}

}  // namespace

int run_plan(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<PlanOptions> options = parse_plan(arguments);
  if (!options) return 0;
  std::vector<ConfigCheck> checks = job_checks();
  int64_t world = 1;
  checks.push_back([&](const JobConfig& config, const Origins& origins) {
    if (options->gpu && !origins.is_set("model.name") && !origins.is_set("model.flavor")) {
      return std::vector{origins.problem("model.flavor", "no model is given to plan for",
                                         "name a config with a [model] section, or give --model.flavor")};
    }
    world = options->world.value_or(fewest_ranks(config));
    return world_problems(config, origins, world);
  });
  checks.push_back([&](const JobConfig& config, const Origins& origins) {
    return device_problems(config, origins, planned_facts(*options, config, world));
  });
  const LoadedConfig loaded = load_config(schema, options->rest, checks);
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  check_rank(*options, loaded.config, world);
  Hardware hardware = options->gpu ? hardware_of(*options->gpu, world) : Hardware{};
  if (options->gpu_memory) hardware.memory_bytes = *options->gpu_memory * kGiB;
  const std::optional<int64_t> room = options->gpu ? std::optional(room_of(hardware)) : std::nullopt;
  const PlannedJob job = plan_job(loaded.config, world, options->rank, loaded.config.training.device != "cpu", room);
  if (options->json) {
    std::cout << prediction_json(predict(loaded.config, job.model, world, hardware), job.plan).dump(1) << '\n';
    return 0;
  }
  print_plan(*options, loaded.config, job, world);
  if (!options->gpu && loaded.config.training.loss_chunks == 0) {
    std::cout << loss_chunks_line(job.plan) << "; --gpu says how many fit into that GPU\n";
  }
  if (options->gpu) print_prediction(*options, loaded.config, job, world, hardware);
  return 0;
}

}  // namespace titan
