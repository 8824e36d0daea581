// Contradictions between options, which need neither the model's description nor the number of ranks (model_checks.cpp,
// world_problems.cpp).
#include <fmt/format.h>

#include <regex>

#include "titan/job/checks.h"
#include "titan/job/data_order.h"

namespace titan {
namespace {

using Problems = std::vector<Problem>;

void check_job(const JobConfig&, const Origins& origins, Problems& problems) {
  if (origins.is_set("job.config_file") && origins.place("job.config_file").kind == Place::Kind::file) {
    problems.push_back(origins.note("job.config_file", "job.config_file has no effect in a file"));
  }
}

void check_profiling(const JobConfig& config, const Origins& origins, Problems& problems) {
  const ProfilingSection& profiling = config.profiling;
  if (profiling.enable_profiling && profiling.profile_freq < profiling.profiler_active + profiling.profiler_warmup) {
    problems.push_back(origins.problem(
        "profiling.profile_freq",
        fmt::format("profiling.profile_freq = {} is shorter than profiler_warmup {} + profiler_active {}",
                    profiling.profile_freq, profiling.profiler_warmup, profiling.profiler_active),
        "make the period longer"));
  }
}

void check_samples(const JobConfig& config, const Origins& origins, Problems& problems) {
  const int64_t degree = config.parallelism.context_parallel_degree;
  if (config.metrics.sample_freq == 0 || degree == 1) return;
  problems.push_back(origins.problem(
      "metrics.sample_freq",
      fmt::format("metrics.sample_freq = {} with parallelism.context_parallel_degree = {}: no rank sees a whole text",
                  config.metrics.sample_freq, degree),
      "set it to 0, or leave out context parallelism"));
}

void check_guard(const JobConfig& config, const Origins& origins, Problems& problems) {
  if (config.training.spike_guard != "skip" || !config.optimizer.early_step_in_backward) return;
  problems.push_back(origins.problem(
      "training.spike_guard",
      "training.spike_guard = \"skip\" with optimizer.early_step_in_backward: weights are stepped before the norm is "
      "known, so a step cannot be left out",
      "use \"warn\", or step after backward"));
}

/// The checks that do not depend on the number of ranks; world_problems checks the rest and uses the same messages.
void check_batch(const JobConfig& config, const Origins& origins, Problems& problems) {
  const int64_t local = config.training.local_batch_size, global = config.training.global_batch_size;
  const int64_t shards = config.parallelism.data_parallel_shard_degree;
  const int64_t data_parallel = shards == -1 ? 1 : config.parallelism.data_parallel_replicate_degree * shards;
  const int64_t at_once = local * data_parallel;
  if (global <= 0 || global % at_once == 0) return;
  const int64_t below = global / at_once * at_once;
  problems.push_back(origins.problem(
      "training.global_batch_size",
      fmt::format("training.global_batch_size = {} is not a multiple of training.local_batch_size = {}{}", global,
                  local, data_parallel > 1 ? fmt::format(" on {} data-parallel ranks", data_parallel) : ""),
      fmt::format("use {}{} (a multiple of {}), or -1", below > 0 ? fmt::format("{} or ", below) : "", below + at_once,
                  at_once)));
}

void check_optimizer(const JobConfig& config, const Origins& origins, Problems& problems) {
  const OptimizerSection& optimizer = config.optimizer;
  const auto check_decay = [&](const char* key, double lr) {
    if (lr * optimizer.weight_decay <= 1) return;
    problems.push_back(origins.problem(
        origins.is_set("optimizer.weight_decay") ? "optimizer.weight_decay" : key,
        fmt::format("optimizer.weight_decay = {} times {} = {} is above 1: every step would flip the weights",
                    optimizer.weight_decay, key, lr),
        "lower one of them (0.1 is the usual weight decay; 0 switches it off)"));
  };
  if (optimizer.name != OptimizerKind::adam) check_decay("optimizer.lr", optimizer.lr);
  if (optimizer.name == OptimizerKind::muon) check_decay("optimizer.muon.lr", optimizer.muon.lr);
  bool pipeline = config.parallelism.pipeline_parallel_degree > 1;
  if (optimizer.early_step_in_backward && pipeline) {
    problems.push_back(origins.problem("optimizer.early_step_in_backward",
                                       "optimizer.early_step_in_backward does not go with a pipeline",
                                       "switch one of them off"));
  }
  if (optimizer.early_step_in_backward && origins.is_set("training.max_norm") && config.training.max_norm > 0) {
    problems.push_back(origins.note("training.max_norm",
                                    "training.max_norm has no effect with optimizer.early_step_in_backward: "
                                    "no step sees all gradients"));
  }
}

void check_parallelism(const JobConfig& config, const Origins& origins, Problems& problems) {
  const ParallelismSection& parallelism = config.parallelism;
  if (parallelism.pipeline_parallel_degree == 1) return;
  bool custom = parallelism.pipeline_parallel_schedule.starts_with("PipelineSchedule");
  if (custom && parallelism.pipeline_parallel_schedule_csv.empty()) {
    problems.push_back(
        origins.problem("parallelism.pipeline_parallel_schedule",
                        fmt::format("parallelism.pipeline_parallel_schedule = \"{}\" needs a schedule of yours",
                                    parallelism.pipeline_parallel_schedule),
                        "name the file in parallelism.pipeline_parallel_schedule_csv"));
  }
}

/// What is wrong with "host:port"; empty if nothing is.
std::string master_problem(const std::string& master) {
  constexpr size_t kLongestMaster = 300;  // a host name has at most 253 bytes, and std::regex is recursive
  if (master.size() > kLongestMaster) return fmt::format("comm.master has {} bytes", master.size());
  const std::regex form(R"(.+:([0-9]+))"), port(R"(0*([1-9][0-9]{0,4}))");
  std::smatch parts, digits;
  if (!std::regex_match(master, parts, form)) return fmt::format("comm.master = \"{}\" has no port", master);
  const std::string number = parts[1];
  if (std::regex_match(number, digits, port) && std::stoi(digits[1]) <= 65535) return {};
  return fmt::format("comm.master = \"{}\" has a port out of range, {}", master, number);
}

void check_communication(const JobConfig& config, const Origins& origins, Problems& problems) {
  const CommSection& comm = config.comm;
  const bool dry_run = comm.mode == "fake_backend";
  const int given = int{comm.rank.has_value()} + int{comm.world_size.has_value()} + int{comm.master.has_value()};
  if (!dry_run && given != 0 && given != 3) {
    const char* present = comm.rank ? "comm.rank" : comm.world_size ? "comm.world_size" : "comm.master";
    problems.push_back(origins.problem(present, "comm.rank, comm.world_size and comm.master belong together",
                                       "give all three, or none and let the launcher say them"));
  }
  if (const std::string wrong = comm.master ? master_problem(*comm.master) : ""; !wrong.empty()) {
    problems.push_back(origins.problem("comm.master", wrong, "write host:port, with a port from 1 to 65535"));
  }
  if (comm.rank && comm.world_size && *comm.rank >= *comm.world_size) {
    problems.push_back(origins.problem(
        "comm.rank", fmt::format("comm.rank = {} is not below comm.world_size = {}", *comm.rank, *comm.world_size),
        "ranks count from 0"));
  }
}

void check_checkpoint(const JobConfig& config, const Origins& origins, Problems& problems) {
  const CheckpointSection& checkpoint = config.checkpoint;
  auto requires_option = [&](bool wanted, bool there, const char* key, const char* needed) {
    if (!wanted || there) return;
    problems.push_back(origins.problem(key, fmt::format("{} needs {} = true", key, needed), "set both or neither"));
  };
  // Without checkpoints, the first option would train and the second would restart from step 0.
  for (const auto& [wanted, key] : {std::pair(checkpoint.create_seed_checkpoint, "checkpoint.create_seed_checkpoint"),
                                    std::pair(checkpoint.require_resume, "checkpoint.require_resume")}) {
    requires_option(wanted, checkpoint.enable, key, "checkpoint.enable");
  }
  if (!checkpoint.enable) return;
  requires_option(checkpoint.initial_load_in_hf, checkpoint.initial_load_model_only, "checkpoint.initial_load_in_hf",
                  "checkpoint.initial_load_model_only");
  requires_option(checkpoint.initial_load_in_hf_quantized, checkpoint.initial_load_in_hf,
                  "checkpoint.initial_load_in_hf_quantized", "checkpoint.initial_load_in_hf");
  requires_option(checkpoint.last_save_in_hf, checkpoint.last_save_model_only, "checkpoint.last_save_in_hf",
                  "checkpoint.last_save_model_only");
  if (checkpoint.load_only && checkpoint.create_seed_checkpoint) {
    problems.push_back(origins.problem("checkpoint.create_seed_checkpoint",
                                       "checkpoint.create_seed_checkpoint contradicts checkpoint.load_only",
                                       "switch one of them off"));
  }
}

void check_float8(const JobConfig& config, const Origins& origins, Problems& problems) {
  const LinearFloat8Section& float8 = config.quantize.linear.float8;
  if (config.model.converters.empty()) return;
  const std::string section = "quantize.linear.float8.";
  const bool rowwise = float8.recipe_name && *float8.recipe_name != Float8Recipe::tensorwise;
  if (rowwise && float8.enable_fsdp_float8_all_gather) {
    problems.push_back(
        origins.problem(section + "enable_fsdp_float8_all_gather",
                        fmt::format("{}enable_fsdp_float8_all_gather does not go with recipe_name = \"{}\"", section,
                                    word_of(*float8.recipe_name)),
                        "gather in float8 with recipe tensorwise only"));
  }
  if (float8.emulate && config.compile.enable) {
    problems.push_back(origins.problem(section + "emulate",
                                       fmt::format("{}emulate does not go with compile.enable = true", section),
                                       "switch one of them off"));
  }
  if (float8.precompute_float8_dynamic_scale_for_fsdp && !float8.enable_fsdp_float8_all_gather) {
    problems.push_back(origins.note(section + "precompute_float8_dynamic_scale_for_fsdp",
                                    fmt::format("{}precompute_float8_dynamic_scale_for_fsdp has no effect without "
                                                "enable_fsdp_float8_all_gather",
                                                section)));
  }
}

void check_data(const JobConfig& config, const Origins& origins, Problems& problems) {
  auto check = [&](const std::string& section, const std::string& dataset, const std::optional<std::string>& path) {
    if ((dataset != "text" && dataset != "chat" && dataset != "nanogpt") || path) return;
    problems.push_back(origins.problem(
        section + ".dataset", fmt::format("{0}.dataset = \"{1}\" needs {0}.dataset_path", section, dataset),
        fmt::format("name a {} file, or a folder of them", dataset == "text"      ? ".txt or .jsonl"
                                                           : dataset == "nanogpt" ? ".bin"
                                                                                  : ".jsonl")));
  };
  const DataSection& data = config.data;
  const bool mixed = config.training.dataset == "mixture";
  if (mixed && data.mixture.empty()) {
    problems.push_back(origins.problem("training.dataset", "training.dataset = \"mixture\" needs data.mixture",
                                       "add a table [[data.mixture]] with path and weight for every source"));
  }
  if (!mixed && !data.mixture.empty()) {
    problems.push_back(origins.problem("data.mixture", "data.mixture is read with training.dataset = \"mixture\" only",
                                       "set that, or leave the tables out"));
  }
  if (data.split == "upstream") {
    auto refuse = [&](bool given, const char* key, const char* what) {
      if (!given) return;
      problems.push_back(origins.problem(key, fmt::format("{} does not go with data.split = \"upstream\"", what),
                                         "leave data.split at \"global\""));
    };
    refuse(mixed, "training.dataset", "training.dataset = \"mixture\"");
    refuse(config.training.dataset == "chat", "training.dataset", "training.dataset = \"chat\"");
    refuse(data.shuffle, "data.shuffle", "data.shuffle = true");
    refuse(data.packing == "document", "data.packing", "data.packing = \"document\"");
  }
  if (data.chat_template == "custom" && data.chat.assistant_suffix.empty()) {
    problems.push_back(origins.problem("data.chat_template",
                                       "data.chat_template = \"custom\" needs data.chat.assistant_suffix",
                                       "give the text or special token that ends the assistant's turn"));
  }
  check("training", config.training.dataset, config.training.dataset_path);
  if (config.validation.enable) check("validation", config.validation.dataset, config.validation.dataset_path);
  for (int64_t step : config.debug.dump_steps) {
    if (step <= config.training.steps) continue;
    problems.push_back(origins.note(
        "debug.dump_steps",
        fmt::format("debug.dump_steps: step {} is beyond training.steps = {}", step, config.training.steps)));
  }
}

}  // namespace

std::vector<Problem> check_contradictions(const JobConfig& config, const Origins& origins) {
  Problems problems;
  check_job(config, origins, problems);
  check_profiling(config, origins, problems);
  check_samples(config, origins, problems);
  check_guard(config, origins, problems);
  check_batch(config, origins, problems);
  check_optimizer(config, origins, problems);
  check_parallelism(config, origins, problems);
  check_communication(config, origins, problems);
  check_checkpoint(config, origins, problems);
  check_float8(config, origins, problems);
  check_data(config, origins, problems);
  check_data_order(config, origins, problems);
  return problems;
}

}  // namespace titan
