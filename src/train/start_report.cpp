// What a run shows before its first step: dtypes, memory by purpose, parameter groups, batch sizes, and the text it
// will read.
#include <algorithm>

#include "titan/base/text.h"
#include "titan/train/job.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

constexpr int64_t kExcerptTokens = 32;

/// One printable line: control characters become spaces, anything longer than the console is cut.
std::string as_excerpt(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 32; }, ' ');
  return text;
}

}  // namespace

void Trainer::show_start(const StepBatch& first) const {
  const Plan& plan = executor_->plan();
  const PlanRequest& request = plan.request;
  log_.info("dtypes: parameters {}, compute {}, gradients float32, optimizer states {}", name(request.master),
            name(request.compute), name(request.optimizer_state));
  log_.info("memory by purpose (predicted):");
  for (const MemoryPurpose& purpose : plan.memory) {
    log_.info("  {:<26} {:>12}", purpose.name, human_bytes(static_cast<double>(purpose.bytes)));
  }
  log_.info("  {:<26} {:>12}", "together", human_bytes(static_cast<double>(plan.predicted_bytes())));
  if (optimizer_groups_.size() > 1) {
    log_.info("parameter groups:                          tensors    parameters   lr x   decay x");
    for (const ParameterGroup& group : optimizer_groups_) {
      int64_t numel = 0;
      for (size_t index : group.members) numel += parameters_[index]->spec().numel();
      log_.info("  {:<40} {:>7} {:>13}  {:>5g}  {:>7g}", group.match.empty() ? "(all others)" : group.match,
                group.members.size(), with_thousands(numel), group.lr_multiplier, group.weight_decay_multiplier);
    }
  }
  if (request.step_in_backward && config_.training.max_norm > 0) {
    log_.warning(
        "optimizer.early_step_in_backward: weights are stepped before the whole norm is known; clipping is off");
  }
  const std::vector<int64_t>& tokens = first.microbatches[0].tokens;
  const auto count = std::min<int64_t>(kExcerptTokens, static_cast<int64_t>(tokens.size()));
  const std::vector<int32_t> head(tokens.begin(), tokens.begin() + count);
  log_.info("first {} tokens of the first batch: {}", count, as_excerpt(tokenizer_->decode(head)));
  const BatchPlan batch = make_batch_plan(config_);
  log_.info(
      "Trainer is initialized with local batch size {}, global batch size {}, gradient accumulation steps {}, "
      "sequence length {}, total steps {} (warmup {}); {} tokens per step",
      batch.local_batch, batch.global_batch(), batch.accumulation, batch.sequence_length, config_.training.steps,
      schedule_.warmup_steps, with_thousands(batch.global_batch() * batch.sequence_length));
  log_.info("Training starts at step 1");
}

void Trainer::show_memory(int64_t peak_bytes) const {
  int64_t masters = 0, copies = 0, gradients = 0;
  for (const Parameter* parameter : parameters_) {
    const auto numel = parameter->spec().numel();
    masters += static_cast<int64_t>(parameter->master.nbytes());
    const bool own_copy = !parameter->send.is_alias_of(parameter->master);
    copies += own_copy ? static_cast<int64_t>(parameter->send.nbytes()) : 0;
    gradients += config_.optimizer.early_step_in_backward ? 0 : numel * size_of(ElementType::float32);
  }
  const int64_t states = optimizer_->state_bytes();
  const int64_t rest = peak_bytes - bytes_before_ - masters - copies - gradients - states;
  log_.info("memory by purpose (actual, peak of the first step):");
  auto row = [this](const char* purpose, int64_t bytes) {
    if (bytes > 0) log_.info("  {:<26} {:>12}", purpose, human_bytes(static_cast<double>(bytes)));
  };
  row("process and libraries", bytes_before_);
  row("parameters", masters);
  row("parameters, compute copy", copies);
  row("gradients", gradients);
  row("optimizer state", states);
  row("activations and the rest", rest);
  row("together", peak_bytes);
}

}  // namespace titan
