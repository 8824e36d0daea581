#include "titan/job/device_problems.h"

#include <fmt/format.h>

#include <charconv>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/job.h"

namespace titan {
namespace {

using Kind = DeviceFacts::Kind;
using Problems = std::vector<Problem>;

constexpr std::string_view kAutomatic = "auto";
/// The first compute capability whose tensor cores multiply float8 (Ada).
constexpr int kFirstWithFloat8 = 89;

std::string dotted(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

void check_presence(const JobConfig& config, const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  if (config.training.device == "cpu") return;
  if (!facts.obstacle.empty()) {
    problems.push_back(origins.problem("training.device", facts.obstacle, "or say training.device = \"cpu\""));
    return;
  }
  if (config.training.device != "cuda" || !facts.is(Kind::cpu)) return;
  problems.push_back(origins.problem("training.device",
                                     "training.device = \"cuda\", but this program sees no CUDA device",
                                     "say training.device = \"cpu\", or check the driver (nvidia-smi) and that titan "
                                     "was built with a CUDA compiler"));
}

/// Initial weights, the gradient norm and the optimizer need the program's kernels whatever compile.enable is.
void check_kernels(const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  if (!facts.is(Kind::gpu) || facts.capability == 0 || facts.architectures.empty()) return;
  if (runs_on(facts.architectures, facts.capability)) return;
  problems.push_back(origins.problem(
      "training.device",
      fmt::format("the kernels of this program are built for {}, and {} has compute capability {}", facts.architectures,
                  facts.name, dotted(facts.capability)),
      fmt::format("build it with CUDAARCHS={}-real, or say training.device = \"cpu\"", facts.capability)));
}

void check_float8_products(const JobConfig& config, const Origins& origins, const DeviceFacts& facts,
                           Problems& problems) {
  const std::optional<LinearFloat8Section> float8 = float8_options(config);
  if (!float8 || float8->emulate || !facts.is(Kind::gpu)) return;
  if (facts.capability == 0 || facts.capability >= kFirstWithFloat8) return;
  problems.push_back(origins.problem(
      "model.converters",
      fmt::format("model.converters asks for float8, which {} (compute capability {}) does not multiply: it takes {} "
                  "or newer",
                  facts.name, dotted(facts.capability), dotted(kFirstWithFloat8)),
      "set quantize.linear.float8.emulate = true to compute the same numbers slowly, or leave the converter out"));
}

/// Whether the model's attention stops at document boundaries. False if there is no such model: that problem is
/// reported by check_model.
bool masks_documents(const JobConfig& config) {
  try {
    return describe_model(config, 1).block_causal;
  } catch (const Error&) {
    return false;
  }
}

void check_attention(const JobConfig& config, const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  const std::string& asked = config.debug.attention_kernel;
  // A checkpoint that was trained on a GPU can be read on a CPU.
  if (asked == kAutomatic || !facts.kind || !facts.trains) return;
  const AttentionUse use{facts.is(Kind::cpu), config.training.mixed_precision_param == ElementType::bfloat16,
                         masks_documents(config), config.debug.deterministic};
  const std::string reason = attention_obstacle(asked, use);
  if (reason.empty()) return;
  problems.push_back(origins.problem("debug.attention_kernel",
                                     fmt::format("debug.attention_kernel = \"{}\" cannot be used: {}", asked, reason),
                                     fmt::format("leave it at \"{}\"", kAutomatic)));
}

/// On a GPU the host waits in the steps of some options by design. The wait of an optimizer on the host (WAIT_HOST) is
/// allowed: it does not go through LibTorch, which does the check.
void check_host_waits(const JobConfig& config, const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  if (!facts.is(Kind::gpu) || !facts.trains) return;
  if (!config.debug.sync_check || !config.training.enable_cpu_offload) return;
  const auto report = [&](std::string_view option, std::string_view waits_for) {
    problems.push_back(origins.problem(
        "debug.sync_check",
        fmt::format("debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true and {} "
                    "= true together also wait for {}",
                    option, waits_for),
        "disable one of the three"));
  };
  const std::optional<LinearFloat8Section> float8 = float8_options(config);
  if (config.optimizer.early_step_in_backward) {
    report("optimizer.early_step_in_backward", "each block's gradients, which its optimizer steps at once");
  } else if (float8 && float8->enable_fsdp_float8_all_gather) {
    report("quantize.linear.float8.enable_fsdp_float8_all_gather",
           "the scales of each block's weights, which it casts itself");
  }
}

/// On a CPU the same thread team gives the same bits anyway.
void check_replay(const JobConfig& config, const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  if (config.debug.replay_steps == 0 || !facts.is(Kind::gpu) || !facts.trains || config.debug.deterministic) return;
  problems.push_back(
      origins.problem("debug.replay_steps",
                      fmt::format("debug.replay_steps = {} compares bits, which some operations on a GPU do not repeat",
                                  config.debug.replay_steps),
                      "set debug.deterministic = true, or debug.replay_steps = 0"));
}

/// Tensor-parallel ranks have consecutive numbers, so a host of consecutive ranks holds all of each if its number of
/// ranks is a multiple. Other placements are found when peer memory is made (parallel/assembly.h).
void check_hosts(const JobConfig& config, const Origins& origins, const DeviceFacts& facts, Problems& problems) {
  const int64_t degree = config.parallelism.tensor_parallel_degree;
  if (!config.parallelism.enable_async_tensor_parallel || degree == 1) return;
  if (!facts.host_ranks || *facts.host_ranks % degree == 0) return;
  problems.push_back(origins.problem(
      "parallelism.enable_async_tensor_parallel",
      fmt::format(
          "parallelism.enable_async_tensor_parallel = true needs all tensor-parallel ranks on one host: hosts of "
          "{} ranks do not hold multiples of parallelism.tensor_parallel_degree = {}",
          *facts.host_ranks, degree),
      "set it to false, or choose parallelism.tensor_parallel_degree within a host"));
}

}  // namespace

DeviceFacts stated_facts(const JobConfig& config) {
  DeviceFacts facts;
  if (config.training.device == "cpu") facts.kind = Kind::cpu;
  if (config.training.device == "cuda") facts.kind = Kind::gpu;
  return facts;
}

std::vector<Problem> device_problems(const JobConfig& config, const Origins& origins, const DeviceFacts& facts) {
  Problems problems;
  check_presence(config, origins, facts, problems);
  // A memory estimate asks the device for its memory, and is also made of jobs that this machine cannot run.
  if (config.memory_estimation.enable) return problems;
  check_kernels(origins, facts, problems);
  check_float8_products(config, origins, facts, problems);
  check_attention(config, origins, facts, problems);
  check_host_waits(config, origins, facts, problems);
  check_replay(config, origins, facts, problems);
  check_hosts(config, origins, facts, problems);
  return problems;
}

std::string attention_obstacle(std::string_view kernel, const AttentionUse& use) {
  if (use.on_cpu) return "a CPU has one attention kernel, which is not among them";
  if (!use.in_bf16) return kernel == "efficient" ? "" : "fp32 attention has the efficient kernel only";
  if (kernel != "cudnn") return "";
  if (use.deterministic) return "cuDNN's gradients vary from run to run";
  return use.documents ? "document lengths vary, and cuDNN builds a plan for each new length" : "";
}

bool runs_on(std::string_view architectures, int capability) {
  for (const std::string& architecture : split(architectures, ',')) {
    int built_for = 0;  // stays so for "all", "native": architectures unknown here
    std::from_chars(architecture.data(), architecture.data() + architecture.size(), built_for);
    if (built_for == 0) return true;
    const bool that_one_alone = architecture.find('a') < architecture.find('-');
    const bool has_ptx = architecture.find("-real") == std::string::npos;
    if (capability == built_for) return true;
    if (that_one_alone || capability < built_for) continue;
    if (has_ptx || capability / 10 == built_for / 10) return true;
  }
  return false;
}

}  // namespace titan
