#include "titan/train/step_runner.h"

#include <ATen/ATen.h>

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/train/device.h"

namespace titan {
namespace {

/// Trained parameters that this rank counts in the norm. If several ranks of a replica hold the same shard, one of them
/// counts it; if two pipeline stages hold a weight, its owner does.
std::vector<std::vector<Parameter*>> counted_parameters(const Plan& plan,
                                                        const std::vector<std::vector<Parameter*>>& groups) {
  std::vector<std::vector<Parameter*>> counted(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (plan.groups[g].is_copy) continue;
    for (size_t i = 0; i < groups[g].size(); ++i) {
      if (groups[g][i]->trainable() && plan.groups[g].parameters[i].in_norm) counted[g].push_back(groups[g][i]);
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
                       double max_norm, StepCommunicators communicators)
    : executor_(executor),
      optimizer_(optimizer),
      group_parameters_(std::move(group_parameters)),
      counted_(counted_parameters(executor.plan(), group_parameters_)),
      // In backward the first group is stepped before the whole norm is known, so nothing is clipped.
      max_norm_(executor.plan().request.optimizer.early_step_in_backward ? 0 : max_norm),
      communicators_(std::move(communicators)) {
  const Plan& plan = executor.plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    if (group.matrices.empty()) continue;
    const auto found = communicators_.of_weights.find(group.matrix_communicator);
    TITAN_CHECK(found != communicators_.of_weights.end(), group.name, group.matrix_communicator);
    matrices_.emplace(static_cast<int>(g), MatrixExchange(plan, group, found->second));
  }
}

StepOutcome StepRunner::run(std::span<const BatchContext> microbatches, int64_t step, double rate, Requests requests,
                            DebugDump* dump, const Executor::Observer& observer) {
  TITAN_CHECK(!microbatches.empty(), step);  // the executor checks each
  device_ = microbatches[0].tokens.device();
  const at::TensorOptions scalar = at::TensorOptions(device_).dtype(at::kDouble);
  current_ = {};
  current_.step = step;
  current_.rate = rate;
  current_.dump = dump;
  current_.loss = at::zeros({}, scalar);
  current_.requests = to_device_soon({static_cast<double>(requests.stop), static_cast<double>(requests.save)}, device_);
  current_.any_skipped = at::zeros({}, scalar.dtype(at::kFloat));
  for (const BatchContext& batch : microbatches.first(microbatches.size() - 1)) {
    const at::Tensor loss =
        executor_.run(executor_.program(ProgramKind::pass), microbatches_of(batch), *this, observer);
    if (loss.defined()) current_.loss = current_.loss + loss;
  }
  executor_.run(executor_.program(ProgramKind::last_pass), microbatches_of(microbatches.back()), *this, observer);
  executor_.run(executor_.program(ProgramKind::update), {}, *this, observer);
  StepOutcome outcome{current_.loss,     current_.control, current_.requests,
                      current_.own_loss, current_.spike,   current_.statistics};
  current_ = {};
  return outcome;
}

namespace {

/// The work of a step that changes nothing.
class NoStep : public StepWork {
 public:
  explicit NoStep(const at::Device& device) : scalar_(at::zeros({}, at::TensorOptions(device).dtype(at::kFloat))) {}
  std::vector<at::Tensor*> applied_scalars() override { return {&scalar_}; }

 private:
  at::Tensor scalar_;
};

}  // namespace

at::Tensor StepRunner::replay(const BatchContext& microbatch, const Executor::Observer& observer) {
  NoStep nothing(microbatch.tokens.device());
  const at::Tensor loss =
      executor_.run(executor_.program(ProgramKind::last_pass), microbatches_of(microbatch), nothing, observer);
  executor_.run(executor_.program(ProgramKind::update), {}, nothing, observer);
  executor_.take_statistics();
  return loss;
}

void StepRunner::guard_with(SpikeGuard* guard) {
  TITAN_CHECK(!guard || !guard->skips() || !steps_in_backward());
  guard_ = guard;
}

std::vector<BatchContext> StepRunner::microbatches_of(const BatchContext& batch) const {
  const PlanRequest& request = executor_.plan().request;
  if (!request.pipeline) return {batch};
  const int64_t count = request.pipeline->microbatches;
  TITAN_CHECK(batch.tokens.size(0) == request.samples * count, batch.tokens.size(0), request.samples, count);
  std::vector<BatchContext> microbatches;
  for (int64_t m = 0; m < count; ++m) microbatches.push_back(samples_of(batch, m * request.samples, request.samples));
  return microbatches;
}

void StepRunner::sum_loss(const at::Tensor& loss) {
  // Undefined on a rank that has no head.
  TITAN_CHECK(!loss.defined() || same_form(loss, current_.loss), summary_of(loss), summary_of(current_.loss));
  if (loss.defined()) current_.loss = current_.loss + loss;
  current_.own_loss = current_.loss;
  current_.statistics = all_statistics();
  if (communicators_.loss) {
    // Requests travel with the loss and with the norm: they need no collective of their own.
    at::Tensor message = at::cat({current_.loss.view({1}), current_.requests, current_.statistics});
    communicators_.loss->all_reduce({message})->wait();
    current_.loss = message[0];
    current_.requests = message.narrow(0, 1, 2).clamp_max(1);
    current_.statistics = message.slice(0, 3);
  }
  // Tensor-parallel ranks have the same loss, but statistics of different tokens.
  if (communicators_.tensor && current_.statistics.numel() > 0) {
    communicators_.tensor->all_reduce({current_.statistics})->wait();
  }
}

at::Tensor StepRunner::all_statistics() {
  const Plan& plan = executor_.plan();
  at::Tensor sums = executor_.take_statistics();
  // A rank that has no unit with statistics has a message as long as those of the others.
  if (!sums.defined()) sums = at::zeros({plan.statistics_numel()}, at::TensorOptions(device_).dtype(at::kDouble));
  if (const at::Tensor of_update = optimizer_.statistics(); of_update.defined()) {
    sums.slice(0, plan.first_of_statistic(plan.first_update_statistic)).add_(of_update);
  }
  return sums;
}

void StepRunner::add_squares(int group) {
  const at::Tensor squares =
      local_squares(group < 0 ? flattened(counted_) : counted_[static_cast<size_t>(group)], device_);
  if (steps_in_backward()) {
    current_.group_squares = squares;
  } else {
    current_.squares = current_.squares.defined() ? current_.squares + squares : squares;
  }
}

void StepRunner::sum_norm(int /*group*/) {
  if (!communicators_.model) return;
  at::Tensor& squares = steps_in_backward() ? current_.group_squares : current_.squares;
  at::Tensor message = at::cat({squares, current_.requests.to(at::kLong)});
  communicators_.model->all_reduce({message})->wait();
  // With the optimizer step in backward this runs once per group: without the clamp the sums would grow without bound.
  current_.requests = message.narrow(0, kExactSlots, 2).clamp_max(1).to(at::kDouble);
  squares = message.narrow(0, 0, kExactSlots);
}

void StepRunner::control(int group) {
  if (group < 0) return control_step();
  const at::Tensor& squares = current_.group_squares;
  current_.applied = control_from(squares, max_norm_, current_.loss);
  current_.squares = current_.squares.defined() ? current_.squares + squares : squares;
  current_.any_skipped = current_.any_skipped.maximum(current_.applied.skip);
}

void StepRunner::control_step() {
  StepControl& control = current_.control = control_from(current_.squares, max_norm_, current_.loss);
  if (steps_in_backward()) control.skip = current_.any_skipped;
  if (guard_) {
    current_.spike = guard_->judge(current_.loss, control.norm);
    if (guard_->skips()) {
      control.skip = at::maximum(control.skip, current_.spike[0].to(control.skip.scalar_type()));
    }
  }
  current_.applied = control;
  if (current_.dump && steps_in_backward()) current_.dump->add_gradients(current_.loss, control.norm);
}

void StepRunner::collect(int group) {
  MatrixExchange& exchange = matrices_.at(group);
  std::vector<at::Tensor> parts;
  for (const size_t index : exchange.parameters()) {
    Parameter& parameter = *group_parameters_[static_cast<size_t>(group)][index];
    parts.push_back(optimizer_.matrix_part(parameter, current_.step, current_.applied));
  }
  exchange.start_collect(std::move(parts));
}

void StepRunner::transform(int group) {
  MatrixExchange& exchange = matrices_.at(group);
  std::vector<at::Tensor> matrices = exchange.wait_collect();
  std::vector<Parameter*> owned;
  for (const size_t own : exchange.owned()) {
    owned.push_back(group_parameters_[static_cast<size_t>(group)][exchange.parameters()[own]]);
  }
  std::vector<at::Tensor> updates;
  if (!owned.empty()) updates = optimizer_.matrix_updates(owned, matrices);
  matrices.clear();  // before memory for the updates of others is allocated
  exchange.start_return(std::move(updates));
}

void StepRunner::wait_transform(int group) {
  MatrixExchange& exchange = matrices_.at(group);
  const std::vector<at::Tensor> parts = exchange.wait_return();
  for (size_t m = 0; m < parts.size(); ++m) {
    Parameter& parameter = *group_parameters_[static_cast<size_t>(group)][exchange.parameters()[m]];
    optimizer_.take_matrix_update(parameter, parts[m]);
  }
}

void StepRunner::step(int group) {
  if (group < 0) {
    if (current_.dump) current_.dump->add_gradients(current_.loss, current_.control.norm);
    return optimizer_.step(current_.step, current_.rate, current_.applied);
  }
  const std::vector<Parameter*>& parameters = group_parameters_[static_cast<size_t>(group)];
  if (current_.dump) current_.dump->add_gradients_of(parameters);
  optimizer_.step_some(parameters, current_.step, current_.rate, current_.applied);
}

}  // namespace titan
