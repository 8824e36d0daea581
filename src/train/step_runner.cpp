#include "titan/train/step_runner.h"

#include <ATen/ATen.h>

#include "titan/base/error.h"
#include "titan/ops/profile_range.h"
#include "titan/optimize/exact_sum.h"
#include "titan/train/device.h"

namespace titan {
namespace {

/// Parameters that this rank counts in the norm: of what every tensor-parallel rank holds, only the first one's copy;
/// of weights that two stages of a pipeline hold, the owner's.
std::vector<std::vector<Parameter*>> counted_parameters(const Plan& plan,
                                                        const std::vector<std::vector<Parameter*>>& groups) {
  const bool first = plan.request.place.coordinate(MeshAxis::tp) == 0;
  std::vector<std::vector<Parameter*>> counted(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (plan.groups[g].is_copy) continue;
    for (size_t i = 0; i < groups[g].size(); ++i) {
      if (first || !plan.groups[g].parameters[i].copied_over_tensor) counted[g].push_back(groups[g][i]);
    }
  }
  return counted;
}

std::vector<Parameter*> flattened(const std::vector<std::vector<Parameter*>>& groups) {
  std::vector<Parameter*> parameters;
  for (const std::vector<Parameter*>& group : groups) parameters.insert(parameters.end(), group.begin(), group.end());
  return parameters;
}

}  // namespace

StepRunner::StepRunner(Executor& executor, Optimizer& optimizer, std::vector<std::vector<Parameter*>> group_parameters,
                       const StepOptions& options, StepCommunicators communicators, PipelineRunner* pipeline)
    : executor_(executor),
      optimizer_(optimizer),
      pipeline_(pipeline),
      group_parameters_(std::move(group_parameters)),
      counted_(counted_parameters(executor.plan(), group_parameters_)),
      options_(options),
      communicators_(std::move(communicators)) {
  if (options.step_in_backward) {
    reduced_ = executor.on_group_reduced([this](size_t group) { step_group(group); });
  } else if (executor.plan().request.cpu_offload) {
    reduced_ = executor.on_group_reduced([this](size_t group) { add_squares(group); });
  }
}

StepOutcome StepRunner::run(std::span<const BatchContext> microbatches, int64_t step, double rate, Wishes wishes,
                            DebugDump* dump) {
  device_ = microbatches[0].tokens.device();
  const at::TensorOptions scalar = at::TensorOptions(device_).dtype(at::kDouble);
  progress_ = {step,
               rate,
               dump,
               at::zeros({}, scalar),
               to_device_soon({static_cast<double>(wishes.stop), static_cast<double>(wishes.save)}, device_),
               {},
               at::zeros({}, scalar.dtype(at::kFloat)),
               {}};
  if (options_.step_in_backward) before_change_();
  compute_gradients(microbatches);
  StepControl control;
  if (options_.step_in_backward) {
    control = control_from(progress_.squares, /*max_norm=*/0, progress_.loss);
    control.skip = progress_.any_skipped;
  } else {
    const ProfileRange range("gradient norm");
    if (!progress_.squares.defined()) progress_.squares = local_squares(flattened(counted_), device_);
    control = control_from(sum_squares(progress_.squares), options_.max_norm, progress_.loss);
  }
  at::Tensor spike;
  if (guard_) {
    spike = guard_->judge(progress_.loss, control.norm);
    if (guard_->skips()) control.skip = at::maximum(control.skip, spike[0].to(control.skip.scalar_type()));
  }
  if (!options_.step_in_backward) before_change_();  // beside gradients that are still on their way to the host
  const StepControl applied = options_.step_in_backward ? control : for_optimizer(control);
  if (dump) dump->add_gradients(progress_.loss, control.norm);
  if (!options_.step_in_backward) {
    const ProfileRange range("optimizer");
    optimizer_.step(step, rate, applied);
  }
  executor_.weights_changed();
  if (executor_.plan().precomputes_scales()) {
    executor_.scale_weights(communicators_.gather.get(), communicators_.tensor.get());
  }
  executor_.finish_step();
  StepOutcome outcome{progress_.loss, control, progress_.wishes, progress_.own_loss, spike};
  progress_ = {};
  return outcome;
}

void StepRunner::guard_with(SpikeGuard* guard) {
  TITAN_CHECK(!guard || !guard->skips() || !options_.step_in_backward);
  guard_ = guard;
}

void StepRunner::compute_gradients(std::span<const BatchContext> microbatches) {
  for (size_t a = 0; a < microbatches.size(); ++a) {
    const bool is_last = a + 1 == microbatches.size();
    if (pipeline_) {
      progress_.loss = progress_.loss + pipeline_->run(microbatches[a], is_last);
      if (is_last) sum_loss();
      continue;
    }
    if (executor_.records_microbatches()) {
      progress_.loss = progress_.loss + executor_.forward_and_backward(microbatches[a], is_last);
      if (is_last) sum_loss();
      continue;
    }
    // Each is done before the next begins, so all use the first slot of the executor.
    progress_.loss = progress_.loss + executor_.forward(microbatches[a], 0);
    if (is_last) sum_loss();
    executor_.backward(microbatches[a], 0, is_last);
  }
}

void StepRunner::sum_loss() {
  progress_.own_loss = progress_.loss;
  if (!communicators_.loss) return;
  at::Tensor message = at::cat({progress_.loss.view({1}), progress_.wishes});
  communicators_.loss->all_reduce({message})->wait();
  progress_.loss = message[0];
  progress_.wishes = message.narrow(0, 1, 2).clamp_max(1);
}

void StepRunner::add_squares(size_t group) {
  const at::Tensor squares = local_squares(counted_[group], device_);
  progress_.squares = progress_.squares.defined() ? progress_.squares + squares : squares;
}

at::Tensor StepRunner::sum_squares(const at::Tensor& squares) {
  if (!communicators_.model) return squares;
  at::Tensor message = at::cat({squares, progress_.wishes.to(at::kLong)});
  communicators_.model->all_reduce({message})->wait();
  // Stepping in backward this happens once for every group: what is only added up would soon pass all bounds.
  progress_.wishes = message.narrow(0, kExactSlots, 2).clamp_max(1).to(at::kDouble);
  return message.narrow(0, 0, kExactSlots);
}

StepControl StepRunner::for_optimizer(const StepControl& control) {
  const std::vector<at::Tensor> there = executor_.wait_home({control.clip, control.skip});
  return {control.norm, there[0], there[1]};
}

void StepRunner::step_group(size_t group) {
  const ProfileRange range("optimizer");
  const at::Tensor squares = sum_squares(local_squares(counted_[group], device_));
  const StepControl control = control_from(squares, /*max_norm=*/0, progress_.loss);
  progress_.squares = progress_.squares.defined() ? progress_.squares + squares : squares;
  progress_.any_skipped = progress_.any_skipped.maximum(control.skip);
  executor_.send_home(group);
  const StepControl applied = for_optimizer(control);
  if (progress_.dump) progress_.dump->add_gradients_of(group_parameters_[group]);
  optimizer_.step_some(group_parameters_[group], progress_.step, progress_.rate, applied);
  executor_.finish_group(group);
}

}  // namespace titan
