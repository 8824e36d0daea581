// Sections optimizer and lr_scheduler.

#include <fmt/format.h>
#include <regex>

#include "titan/config/section.h"

namespace titan::detail {

namespace {

void write_groups(OptimizerSection& optimizer, const std::vector<Record>& records) {
  optimizer.param_groups.clear();
  for (const Record& record : records) {
    ParamGroup group;
    group.match = std::get<std::string>(record.fields.at("match"));
    group.lr_multiplier = std::get<double>(record.fields.at("lr_multiplier"));
    group.weight_decay_multiplier = std::get<double>(record.fields.at("weight_decay_multiplier"));
    group.update = choice_of<GroupUpdate>(std::get<std::string>(record.fields.at("update")));
    optimizer.param_groups.push_back(std::move(group));
  }
}

std::vector<Record> read_groups(const OptimizerSection& optimizer) {
  std::vector<Record> records;
  for (const ParamGroup& group : optimizer.param_groups) {
    records.push_back({{{"match", Value(group.match)},
                        {"lr_multiplier", Value(group.lr_multiplier)},
                        {"weight_decay_multiplier", Value(group.weight_decay_multiplier)},
                        {"update", Value(std::string(word_of(group.update)))}}});
  }
  return records;
}

/// Limits the pattern's length: std::regex compiles a pattern recursively, and 30,000 nested brackets overflow a stack
/// of 8 MiB. Patterns of parameter names have a few dozen bytes.
std::optional<std::string> pattern_problem(const Value& value) {
  constexpr size_t kLongest = 1000;
  const auto& pattern = std::get<std::string>(value);
  if (pattern.size() > kLongest) return fmt::format("optimizer.param_groups.match has {} bytes", pattern.size());
  try {
    const std::regex expression(pattern);
  } catch (const std::regex_error&) {
    return fmt::format(
        "optimizer.param_groups.match = \"{}\" is not a regular expression; check its brackets and "
        "backslashes (a TOML string in single quotes keeps them)",
        pattern);
  }
  return std::nullopt;
}

void describe_optimizer_section(Schema& schema) {
  using S = OptimizerSection;
  Section optimizer(
      schema, "optimizer", "How parameters are updated.", [](auto& config) -> auto& { return config.optimizer; });
  optimizer.add("name", &S::name, OptimizerKind::adamw)
      .help("optimizer; Muon steps matrices of blocks, and AdamW the rest");
  optimizer.add("lr", &S::lr, 8e-4).at_least(0).help("peak learning rate");
  optimizer.add("beta1", &S::beta1, 0.9).later().at_least(0).below(1).help("decay of the first moment");
  optimizer.add("beta2", &S::beta2, 0.95).later().at_least(0).below(1).help("decay of the second moment");
  // Below the smallest normal float32, a device that flushes denormals makes eps 0, and 0 / 0 follows.
  optimizer.add("eps", &S::eps, 1e-8).later().at_least(1e-37).help("term added to the denominator");
  optimizer.add("weight_decay", &S::weight_decay, 0.1)
      .later()
      .at_least(0)
      .help("weight decay: decoupled for AdamW, added to the gradient for Adam");
  optimizer.add("implementation", &S::implementation, OptimizerImplementation::fused)
      .in_2024(Value("foreach"))
      .later()
      .help("how the step is computed; the three agree up to rounding");
  optimizer.add("early_step_in_backward", &S::early_step_in_backward, false)
      .help("step each unit inside backward, without keeping gradients; clipping is then off");
  optimizer.add("state_dtype", &S::state_dtype, ElementType::float32)
      .own()
      .help("dtype of the optimizer's moments; bfloat16 uses stochastic rounding");
  optimizer.add("offload", &S::offload, false)
      .own()
      .only_when({"training.enable_cpu_offload = false",
                  [](const JobConfig& config) { return !config.training.enable_cpu_offload; }})
      .help(
          "keep the optimizer's moments in host memory and bring them to the device in the step, one after the other");
  Option& groups = optimizer.add_records("param_groups", write_groups, read_groups);
  groups.own()
      .field("match", ValueType::text, Value(), "regular expression, searched in the parameter's name")
      .field("lr_multiplier", ValueType::number, Value(1.0), "factor on the learning rate")
      .field("weight_decay_multiplier", ValueType::number, Value(1.0), "factor on the weight decay")
      .field("update", ValueType::text, Value("by_kind"),
             "with Muon: adamw or muon; by_kind: muon for matrices of blocks")
      .help("tables `[[optimizer.param_groups]]`: parameters whose name matches get other rates");
  groups.fields[0].not_empty().rule("a regular expression of at most 1000 bytes", pattern_problem);
  groups.fields[1].at_least(0);
  groups.fields[2].at_least(0);
  groups.fields[3].choices(words_of<GroupUpdate>());
  describe_muon(schema);
}

void describe_lr_scheduler(Schema& schema) {
  using S = LrSchedulerSection;
  Section scheduler(
      schema, "lr_scheduler", "The learning rate over time: warm-up, plateau, decay.",
      [](auto& config) -> auto& { return config.lr_scheduler; });
  Condition shaped{"job.generation is 2026",
                   [](const JobConfig& config) { return config.lr_scheduler.formula != RateFormula::december_2024; }};
  Condition decays{"job.generation is 2026 and lr_scheduler.decay_ratio not 0", [](const JobConfig& config) {
                     return config.lr_scheduler.formula != RateFormula::december_2024 &&
                            config.lr_scheduler.decay_ratio.value_or(1) > 0;
                   }};
  scheduler.add("warmup_steps", &S::warmup_steps, 200).later().at_least(0).help("steps of linear warm-up");
  scheduler.add("total_steps", &S::total_steps, std::nullopt)
      .later()
      .at_least(1)
      .help("steps the schedule is laid out for; none: training.steps");
  scheduler.add("decay_ratio", &S::decay_ratio, std::nullopt)
      .later()
      .at_least(0)
      .at_most(1)
      .only_when(shaped)
      .help("share of the steps spent decaying; none: everything after the warm-up");
  scheduler.add("decay_type", &S::decay_type, DecayType::linear).later().only_when(decays).help("shape of the decay");
  scheduler.add("min_lr_factor", &S::min_lr_factor, 0.0)
      .later()
      .at_least(0)
      .at_most(1)
      .only_when(decays)
      .help("where the decay ends, as a fraction of the peak");
}

}  // namespace

void describe_optimizer(Schema& schema) {
  describe_optimizer_section(schema);
  describe_lr_scheduler(schema);
}

}  // namespace titan::detail
