// Sections debug, memory_estimation and experimental.
#include "section.h"

namespace titan::detail {
namespace {

void describe_debug_section(Schema& schema) {
  using S = DebugSection;
  Section debug(
      schema, "debug", "Reproducing a run and looking inside it.", [](auto& config) -> auto& { return config.debug; });
  debug.add("seed", &S::seed, std::nullopt)
      .later()
      .at_least(0)
      .help("seed of the initial weights and of generated text; none: drawn when the run starts, and shown");
  debug.add("deterministic", &S::deterministic, false).later().help("only operations whose result does not vary");
  debug.add("deterministic_warn_only", &S::deterministic_warn_only, false)
      .later()
      .only_when({"debug.deterministic = true", [](const JobConfig& config) { return config.debug.deterministic; }})
      .help("warn of an operation that has no deterministic form instead of ending the run");
  debug.add("dump_steps", &S::dump_steps, {})
      .own()
      .at_least(1)
      .help("steps whose tensors are written to debug/step-N/step.safetensors under job.dump_folder");
  debug.add("dump_logits", &S::dump_logits, false)
      .own()
      .only_when(
          {"debug.dump_steps names a step", [](const JobConfig& config) { return !config.debug.dump_steps.empty(); }})
      .help("write the logits too");
  debug.add("sync_check", &S::sync_check, false)
      .own()
      .help("make a call that waits for the GPU within a step an error; on a CPU, operations that would wait for one");
  debug.add("groups_of_one", &S::groups_of_one, false)
      .own()
      .help("communicate in groups of one rank too, where there is nothing to say: one GPU alone then uses NCCL");
  debug.add("share_gpu", &S::share_gpu, false)
      .own()
      .among_several("one process has its GPU alone")
      .help("let several ranks use one GPU, for checks only: NCCL then talks over sockets");
  debug.accept("moe_force_load_balance", ValueType::boolean, Value(false))
      .later()
      .no_effect("there are no expert layers here", {Value(false)})
      .help("send tokens to experts evenly");
}

}  // namespace

void describe_debug(Schema& schema) {
  describe_debug_section(schema);
  Section estimation(
      schema, "memory_estimation", "Predicting memory instead of training.",
      [](auto& config) -> auto& { return config.memory_estimation; });
  estimation.add("enable", &MemoryEstimationSection::enable, false)
      .later()
      .help("show what one rank would take by purpose and by unit, instead of training");
  estimation.accept("disable_fake_mode", ValueType::boolean, Value(false))
      .no_effect("the prediction never needs real tensors")
      .help("measure with real tensors");
  Section experimental(
      schema, "experimental", "Options on trial.", [](auto& config) -> auto& { return config; });
  experimental.accept("custom_import", ValueType::text, Value(""))
      .later()
      .no_effect("a Python module cannot be imported", {Value("")})
      .help("Python module to import first");
  experimental.accept("enable_compiled_autograd", ValueType::boolean, Value(false))
      .early()
      .no_effect("backward is not traced by a Python compiler")
      .help("trace and compile backward");
}

}  // namespace titan::detail
