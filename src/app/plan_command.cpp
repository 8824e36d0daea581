// titan_train plan: what a config would do on any number of ranks, without starting one.
#include <algorithm>
#include <iostream>

#include "planned_job.h"
#include "titan/app/commands.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/cli/program.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/config/section.h"
#include "titan/parallel/program.h"
#include "titan/tools/simulate.h"
#include "titan/train/memory_report.h"
#include "titan/train/start_report.h"
#include "titan/train/world_problems.h"

namespace titan {
namespace {

struct PlanOptions {
  std::optional<int64_t> world;  // else what the config's degrees ask for
  int64_t rank = 0;
  bool verbose = false;
  bool program = false;
  std::string gpu;                // the verdict and the time of a step on GPUs of this name; empty: neither
  std::string trace;              // where the simulated step goes
  std::vector<std::string> rest;  // the config and its overrides
};

std::optional<PlanOptions> parse_plan(std::span<const std::string> arguments) {
  PlanOptions options;
  CLI::App app("Print layouts, communication and memory of a run on any number of ranks", "titan_train plan");
  app.add_option("--world", options.world, "Number of ranks; else as many as the degrees ask for")
      ->check(CLI::Range(int64_t{1}, kMostRanks));
  app.add_option("--rank", options.rank, "The rank whose parts are shown")
      ->check(CLI::Range(int64_t{0}, kMostRanks - 1));
  app.add_flag("--verbose", options.verbose, "Also what each unit sends, and shape and layout of every parameter");
  app.add_flag("--program", options.program, "Also the program of a step: every instruction of the rank, in order");
  app.add_option("--gpu", options.gpu,
                 "Whether it fits, and how long a step takes, on " + join(hardware_names(), ", ") +
                     ", or a TOML file with one such table");
  app.add_option("--trace", options.trace, "File for the simulated step, for chrome://tracing or Perfetto; needs --gpu")
      ->needs("--gpu");
  app.allow_extras();
  app.footer("A config file and --section.key options follow, as for training.");
  if (!parse_words(app, arguments, std::cout)) return std::nullopt;
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

/// A group but for its name, so that those of a kind read alike.
std::string described(const WeightGroupPlan& group, const std::vector<Exchange>& exchanges) {
  std::string text = fmt::format(
      "{} elements, {} owned; {}{}\n", with_thousands(group.numel), with_thousands(group.shard_numel),
      name(group.compute), group.narrows_gradient() ? fmt::format(", gradient travels in {}", name(group.reduce)) : "");
  std::vector<std::string> sent;
  for (const Exchange& exchange : exchanges) sent.push_back(in_words(exchange));
  text += sent.empty() ? "" : fmt::format("  each step: {}\n", join(sent, "; "));
  if (group.gathers_float8) text += "  float8 weights are gathered as float8\n";
  for (const ParameterPlan& parameter : group.parameters) {
    const std::string& whole = parameter.spec.name;
    const bool within = whole.starts_with(group.name + ".");
    text += fmt::format("  {:<30} {:<16} {}\n  {:<30} seen {}, owned {} from {}\n",
                        within ? whole.substr(group.name.size() + 1) : whole, shape(parameter.spec.shape),
                        layout_words(parameter.layout), "", shape(parameter.unsharded.extent),
                        shape(parameter.shard.extent), shape(parameter.shard.offset));
  }
  return text;
}

/// Groups in a row that are alike are shown once.
void print_groups(const Plan& plan) {
  const std::vector<std::vector<Exchange>> exchanges = weight_exchanges(plan);
  for (size_t first = 0, end = 0; first < plan.groups.size(); first = end) {
    const std::string text = described(plan.groups[first], exchanges[first]);
    for (end = first + 1; end < plan.groups.size(); ++end) {
      if (described(plan.groups[end], exchanges[end]) != text) break;
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

/// A step that begins where the one before it ended, and a validation behind it.
void print_programs(const Plan& plan) {
  const std::vector<RepeatedProgram> step = step_programs(plan, stale_state(plan));
  for (size_t i = 0; i < step.size(); ++i) {
    const char* name = i + 1 == step.size() ? "update" : i + 2 == step.size() ? "last pass" : "pass";
    print_program(plan, name, step[i].program, step[i].times);
  }
  if (!plan.request.validation) return;
  const WeightState& entry = step.back().program.exit;
  print_program(plan, "validation", expand(plan, ProgramKind::evaluation, entry), 1);
}

/// Where the number of ranks comes from, unless it was given to this command.
const char* words_for_world(const PlanOptions& options, const JobConfig& config) {
  if (options.world) return "";
  return config.comm.world_size ? ", as comm.world_size says (--world: other numbers)"
                                : ", as the degrees ask for at least (--world: other numbers)";
}

// ---- does it fit, and how fast is it

constexpr double kGiB = 1024.0 * 1024 * 1024;
/// What an allocator reserves beyond the tensors that it holds: a GPU's was seen to take up to 4 % more
/// (mock_gpu_test).
constexpr double kReserved = 1.04;
constexpr double kContextBytes = 1.2 * kGiB;  // CUDA's context, libraries and the buffers of communicators

struct PlannedRanks {
  std::vector<Plan> plans;  // one rank of each pipeline coordinate, the one with the largest shards
  size_t peak = 0;          // of them, the one that needs most
  double bytes() const { return kReserved * static_cast<double>(plans[peak].predicted_bytes(/*device_only=*/true)); }
};

PlannedRanks plan_ranks(const JobConfig& config, int64_t world, const Plan& of_rank_0) {
  PlannedRanks ranks;
  const MeshAxis pipeline[] = {MeshAxis::pp};
  for (const int64_t rank : of_rank_0.request.place.mesh.group(0, pipeline)) {
    ranks.plans.push_back(rank == 0 ? of_rank_0 : plan_job(config, world, rank, /*on_gpu=*/true).plan);
    if (ranks.plans.back().predicted_bytes(true) > ranks.plans[ranks.peak].predicted_bytes(true)) {
      ranks.peak = ranks.plans.size() - 1;
    }
  }
  return ranks;
}

void print_fit(const JobConfig& config, const PlannedRanks& ranks, const ModelDescription& model,
               const Hardware& hardware) {
  const Plan& plan = ranks.plans[ranks.peak];
  const double needed = ranks.bytes() + kContextBytes, left = hardware.memory_bytes - needed;
  std::cout << fmt::format(
      "\non {} ({:.1f} GiB): rank {} needs most, {:.1f} GiB reserved and {:.1f} GiB beside, at {}\n", hardware.name,
      hardware.memory_bytes / kGiB, plan.request.place.rank, ranks.bytes() / kGiB, kContextBytes / kGiB, plan.peak);
  if (left >= 0) {
    std::cout << fmt::format("fits, with {:.1f} GiB to spare\n", left / kGiB);
    return;
  }
  std::cout << fmt::format("does not fit, by {:.1f} GiB\n", -left / kGiB);
  const MemoryQuestion question{config, plan.request.place, model.vocabulary, /*device_only=*/true,
                                static_cast<int64_t>(hardware.memory_bytes)};
  for (const MemorySetting& setting : settings_that_fit(question)) {
    std::cout << fmt::format("it would fit with {} ({:.1f} GiB)\n", setting.words,
                             static_cast<double>(setting.bytes) / kGiB);
  }
}

void print_time(const PlanOptions& options, const PlannedRanks& ranks, int64_t world, const Hardware& hardware) {
  const SimulatedStep step = simulate_step(ranks.plans, hardware, !options.trace.empty());
  const Plan& plan = ranks.plans[0];
  const PlanRequest& request = plan.request;
  const double tokens = static_cast<double>(request.samples * request.sequence_length * request.accumulation *
                                            request.place.mesh.data_parallel_degree());
  const double per_gpu = tokens / step.seconds / static_cast<double>(world);
  const double flops = per_gpu * static_cast<double>(plan.flops_per_token);
  std::cout << fmt::format(
      "a step takes {:.3f} s: {:.0f} tokens/s per GPU, {:.0f} TFLOP/s in torchtitan's convention\n", step.seconds,
      per_gpu, flops / 1e12);
  std::map<std::string, double> most;  // by purpose, of the rank that computes longest
  const auto busy = [](const SimulatedRank& rank) {
    double seconds = 0;
    for (const auto& [purpose, part] : rank.seconds) seconds += purpose.starts_with("waiting") ? 0 : part;
    return seconds;
  };
  const auto longest = std::max_element(step.ranks.begin(), step.ranks.end(),
                                        [&](const auto& a, const auto& b) { return busy(a) < busy(b); });
  double sum = 0;
  std::vector<std::pair<double, std::string>> parts;
  for (const auto& [purpose, seconds] : longest->seconds) parts.emplace_back(seconds, purpose), sum += seconds;
  if (step.seconds > sum) parts.emplace_back(step.seconds - sum, "waiting for the last rank");
  std::sort(parts.rbegin(), parts.rend());
  for (const auto& [seconds, purpose] : parts) {
    if (seconds < 0.0005 * step.seconds) continue;
    std::cout << fmt::format("  {:<32} {:>8.1f} ms {:>6.1f} %\n", purpose, 1e3 * seconds, 100 * seconds / step.seconds);
  }
  if (options.trace.empty()) return;
  replace_file(options.trace, chrome_trace(step));
  std::cout << "the step as a trace: " << options.trace << '\n';
}

}  // namespace

int run_plan(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<PlanOptions> options = parse_plan(arguments);
  if (!options) return 0;
  std::vector<ConfigCheck> checks = config_checks();
  int64_t world = 1;
  checks.push_back([&](const JobConfig& config, const Origins& origins) {
    world = options->world.value_or(fewest_ranks(config));
    return world_problems(config, origins, world);
  });
  const LoadedConfig loaded = load_config(schema, options->rest, checks);
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  if (options->rank >= world) {
    const char* asks = loaded.config.comm.world_size ? "comm.world_size says" : "the degrees ask for";
    throw Error(ExitCode::bad_config,
                fmt::format("plan: --rank {} is not below {}", options->rank,
                            options->world ? fmt::format("--world {}", world)
                                           : fmt::format("the {} that {}; give --world, too", world, asks)));
  }
  const auto [place, model, plan] =
      plan_job(loaded.config, world, options->rank, loaded.config.training.device != "cpu");
  std::cout << mesh_line(place.mesh) << fmt::format("; rank {} of {}", options->rank, world)
            << words_for_world(*options, loaded.config) << '\n';
  std::cout << fmt::format("{} {}: {}\n{} parameters\n", model.name, model.flavor, model.summary,
                           with_thousands(plan.parameter_count));
  if (const std::optional<std::string> idle = precision_warning(plan)) std::cout << "warning: " << *idle << '\n';
  for (const std::string& line : precision_lines(plan)) std::cout << line << '\n';
  std::cout << "\nmemory of this rank:\n";
  for (const std::string& line : memory_table(plan)) std::cout << line << '\n';
  std::cout << "\nper step:\n";
  for (const std::string& line : parallelism_lines(plan)) std::cout << line << '\n';
  if (plan.traffic.empty()) std::cout << "  nothing is sent\n";
  for (const std::string& line : offload_lines(plan)) std::cout << line << '\n';
  if (options->verbose) print_groups(plan);
  if (options->program) print_programs(plan);
  if (options->gpu.empty()) return 0;
  const Hardware hardware = find_hardware(options->gpu);
  const PlannedRanks ranks = plan_ranks(loaded.config, world, plan);
  print_fit(loaded.config, ranks, model, hardware);
  print_time(*options, ranks, world, hardware);
  return 0;
}

}  // namespace titan
