#include "titan/train/step_runner.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace titan {

StepRunner::StepRunner(Executor& executor, Optimizer& optimizer, std::vector<Parameter*> parameters,
                       std::vector<std::vector<Parameter*>> group_parameters, const StepOptions& options)
    : executor_(executor),
      optimizer_(optimizer),
      parameters_(std::move(parameters)),
      group_parameters_(std::move(group_parameters)),
      options_(options) {
  if (options.step_in_backward) {
    executor.on_group_reduced([this](size_t group) { step_group(group); });
  }
}

StepOutcome StepRunner::run(std::span<const BatchContext> microbatches, int64_t step, double rate, DebugDump* dump) {
  const at::TensorOptions scalar = at::TensorOptions(microbatches[0].tokens.device()).dtype(at::kDouble);
  progress_ = {step, rate, dump, at::zeros({}, scalar), at::zeros({}, scalar), at::zeros({}, scalar.dtype(at::kFloat))};
  for (size_t a = 0; a < microbatches.size(); ++a) {
    // Each is done before the next begins, so all use the first slot of the executor.
    progress_.loss = progress_.loss + executor_.forward(microbatches[a], 0);
    executor_.backward(microbatches[a], 0, a + 1 == microbatches.size());
  }
  StepControl control;
  if (options_.step_in_backward) {
    control = {progress_.squared_norm.sqrt(), at::ones({}, scalar.dtype(at::kFloat)), progress_.any_skipped};
  } else {
    control = control_step(parameters_, options_.max_norm, progress_.loss);
  }
  if (dump) dump->add_gradients(progress_.loss, control.norm);
  if (!options_.step_in_backward) optimizer_.step(step, rate, control);
  executor_.weights_changed();
  executor_.finish_step();
  StepOutcome outcome{progress_.loss, control};
  progress_ = {};
  return outcome;
}

void StepRunner::step_group(size_t group) {
  const std::vector<Parameter*>& parameters = group_parameters_[group];
  const StepControl control = control_step(parameters, /*max_norm=*/0, progress_.loss);
  progress_.squared_norm = progress_.squared_norm + control.norm.square();
  progress_.any_skipped = progress_.any_skipped.maximum(control.skip);
  if (progress_.dump) progress_.dump->add_gradients_of(parameters);
  optimizer_.step_some(parameters, progress_.step, progress_.rate, control);
  executor_.finish_group(group);
}

}  // namespace titan
