#include "titan/train/start_report.h"

#include <algorithm>
#include <cmath>

#include "titan/base/text.h"
#include "titan/estimate/plan_report.h"
#include "titan/job/job.h"
#include "titan/job/updates.h"
#include "titan/text/utf8.h"
#include "titan/train/run.h"

namespace titan {
namespace {

// The excerpt is one line of the log; the sample, some sentences that the page shows.
constexpr int64_t kExcerptTokens = 32;
constexpr int64_t kSampleTokens = 256;
constexpr int kExcerptCharacters = 120;

/// At most `most` tokens from the beginning of a batch.
std::vector<int32_t> shown_tokens(const StepBatch& batch, int64_t most) {
  const std::vector<int64_t>& tokens = batch.microbatches[0].tokens;
  const auto count = std::min<int64_t>(most, static_cast<int64_t>(tokens.size()));
  return {tokens.begin(), tokens.begin() + count};
}

/// Units that compute in fp32.
std::vector<std::string> wide_units(const Plan& plan) {
  std::vector<std::string> names;
  for (const UnitPlan& unit : plan.units) {
    if (unit.compute == ElementType::float32) names.push_back(unit.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> parameter_group_table(std::span<const ParameterGroup> groups,
                                               std::span<Parameter* const> parameters) {
  std::vector<std::string> lines{"parameter groups:                          tensors    parameters   lr x   decay x"};
  for (const ParameterGroup& group : groups) {
    int64_t numel = 0;
    for (size_t index : group.members) numel += parameters[index]->spec().numel();
    lines.push_back(fmt::format("  {:<40} {:>7} {:>13}  {:>5g}  {:>7g}",
                                group.match.empty() ? "(all others)" : group.match, group.members.size(),
                                with_thousands(numel), group.lr_multiplier, group.weight_decay_multiplier));
  }
  return lines;
}

std::optional<std::string> explain_first_loss(double loss, int64_t vocabulary, bool is_trained, bool is_fresh) {
  // Limits relative to ln V: trained models are below kKnowsNothing, even poor ones on other text; fresh weights, whose
  // logits are small, are between kTooLow and kTooHigh.
  constexpr double kKnowsNothing = 0.9, kTooLow = 0.7, kTooHigh = 1.5;
  const double nothing_known = std::log(static_cast<double>(vocabulary));
  const std::string shown =
      fmt::format("the first loss is {:.2f}; uniform predictions give ln V = {:.2f} (V = {} tokens)", loss,
                  nothing_known, with_thousands(vocabulary));
  if (!std::isfinite(loss)) return std::nullopt;
  if (is_trained && loss > kKnowsNothing * nothing_known) {
    return shown + ": the loaded weights or the tokenizer are probably wrong";
  }
  if (is_fresh && loss < kTooLow * nothing_known) {
    return shown + ": too low for new weights, unless the text is very uniform or leaks its labels";
  }
  if (is_fresh && loss > kTooHigh * nothing_known) {
    return shown + ": the initialisation is probably too wide for this model size";
  }
  return std::nullopt;
}

std::string excerpt(std::string text) {
  repair_utf8(text);
  std::string line;
  int characters = 0;
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    if (++characters > kExcerptCharacters) return line + "…";
    const std::string_view rest = std::string_view(text).substr(at);
    const char32_t character = first_code_point(rest);
    append_utf8(disturbs_a_line(character) ? U' ' : character, line);
  }
  return line;
}

std::string first_text(const StepBatch& batch, const Tokenizer& tokenizer) {
  std::string text = tokenizer.decode(shown_tokens(batch, kSampleTokens));
  repair_utf8(text);
  return text;
}

void report_start(const Run& run, const StepBatch& first) {
  const Plan& plan = run.model.plan();
  const PlanRequest& request = plan.request;
  const bool narrows = !plan.message_slots.empty();
  const auto narrow = std::find_if(plan.groups.begin(), plan.groups.end(),
                                   [](const WeightGroupPlan& group) { return group.gradient != ElementType::float32; });
  const std::string gradients = narrow != plan.groups.end() ? fmt::format(" (of blocks {})", name(narrow->gradient))
                                : narrows
                                    ? fmt::format(" (reduced in {})", name(request.training.mixed_precision_reduce))
                                    : "";
  run.log.info("dtypes: parameters {}, compute {}, gradients float32{}, optimizer states {}",
               name(request.training.dtype), name(request.training.mixed_precision_param), gradients,
               name(request.optimizer.state_dtype));
  if (!request.training.keep_fp32.empty() && request.training.mixed_precision_param != ElementType::float32) {
    run.log.info("units in float32 throughout: {}", join(wide_units(plan), ", "));
  }
  run.log.info("memory by purpose (predicted):");
  for (const std::string& line : memory_table(plan)) run.log.info(line);
  if (run.model.parameter_groups.size() > 1) {
    for (const std::string& line : parameter_group_table(run.model.parameter_groups, run.model.parameters))
      run.log.info(line);
  }
  if (const std::string shared = shared_work(run.config.optimizer, run.model.description); !shared.empty()) {
    run.log.info(shared);
  }
  if (request.optimizer.early_step_in_backward && run.config.training.max_norm > 0) {
    run.log.shared_warning(
        "optimizer.early_step_in_backward: weights are stepped before the whole norm is known; clipping is off");
  }
  const std::vector<int32_t> head = shown_tokens(first, kExcerptTokens);
  run.log.info("first {} tokens of the first batch: {}", head.size(), excerpt(run.data.tokenizer->decode(head)));
  const BatchPlan batch = make_batch_plan(run.config, run.place);
  run.log.info(
      "Trainer is initialized with local batch size {}, global batch size {}, gradient accumulation steps {}, "
      "sequence length {}, total steps {} (warmup {}); {} tokens per step",
      batch.local_batch, batch.global_batch(), batch.accumulation, batch.sequence_length, run.config.training.steps,
      run.model.schedule.options.warmup_steps, with_thousands(batch.global_batch() * batch.sequence_length));
}

}  // namespace titan
