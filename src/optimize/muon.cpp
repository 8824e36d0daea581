#include "titan/optimize/muon.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "titan/base/error.h"
#include "titan/job/updates.h"
#include "titan/ops/tensor_checks.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/optimize/rounded_store.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

double ratio_of(MuonRate rate, const std::vector<int64_t>& shape) {
  const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  if (rate == MuonRate::original) return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));  // an orthogonal matrix has an RMS of 1 / √max, AdamW's update 0.2
}

/// The groups with the members that `in_adam` names, as indices there.
std::vector<ParameterGroup> groups_in(const std::vector<ParameterGroup>& groups,
                                      const std::vector<std::optional<size_t>>& in_adam) {
  std::vector<ParameterGroup> result = groups;
  for (ParameterGroup& group : result) {
    std::vector<size_t> members;
    for (const size_t index : group.members) {
      if (in_adam[index]) members.push_back(*in_adam[index]);
    }
    group.members = std::move(members);
  }
  return result;
}

OptimizerSection adam_options(OptimizerSection options) {
  options.name = OptimizerKind::adamw;
  return options;
}

}  // namespace

MuonOptimizer::MuonOptimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                             const std::vector<bool>& by_muon, const OptimizerSection& options, uint64_t rounding_seed,
                             std::shared_ptr<HostOffload> offload, MuonStatistics statistics)
    : options_(options.muon),
      iteration_{.steps = options.muon.ns_steps, .eps = options.muon.eps},
      base_lr_(options.lr),
      rounding_seed_(rounding_seed),
      offload_(std::move(offload)),
      in_adam_(parameters.size()),
      in_muon_(parameters.size()),
      statistics_(std::move(statistics)) {
  TITAN_CHECK(by_muon.size() == parameters.size() && options_.ns_coefficients.size() == 3 && base_lr_ > 0,
              by_muon.size(), parameters.size(), options_.ns_coefficients.size(), base_lr_);
  std::copy_n(options_.ns_coefficients.begin(), 3, iteration_.coefficients.begin());
  std::vector<Parameter*> others;
  std::vector<size_t> of_muon;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (by_muon[i] && parameters[i]->trainable()) {
      of_muon.push_back(i);
      continue;
    }
    in_adam_[i] = others.size();  // frozen ones, too: AdamOptimizer keeps their compute copies valid
    others.push_back(parameters[i]);
  }
  // matrices_ has the plan's order, in which they are collected: the momentum fetched ahead is then the next that is
  // needed.
  const auto number = [&](size_t index) {
    const auto found = statistics_.number.find(parameters[index]->name());
    return found == statistics_.number.end() ? 0 : found->second;
  };
  std::stable_sort(of_muon.begin(), of_muon.end(), [&](size_t a, size_t b) { return number(a) < number(b); });
  for (const size_t i : of_muon) {
    in_muon_[i] = by_parameter_[parameters[i]] = matrices_.size();
    matrices_.push_back(new_matrix(*parameters[i], options.state_dtype));
  }
  for (const ParameterGroup& group : groups) {
    for (const size_t index : group.members) {
      if (in_adam_[index]) continue;
      matrices_[in_muon_[index]].lr_multiplier = group.lr_multiplier;
      matrices_[in_muon_[index]].weight_decay = options.weight_decay * group.weight_decay_multiplier;
    }
  }
  if (statistics_.numel > 0 && !matrices_.empty()) {
    measured_ =
        at::full({statistics_.numel}, kNoStatistic, matrices_[0].parameter->master.options().dtype(at::kDouble));
  }
  adam_ = std::make_unique<AdamOptimizer>(std::move(others), groups_in(groups, in_adam_), adam_options(options),
                                          rounding_seed, offload_);
}

MuonOptimizer::Matrix MuonOptimizer::new_matrix(Parameter& parameter, ElementType type) const {
  TITAN_CHECK(parameter.spec().shape.size() == 2, parameter.name(), parameter.spec().shape.size());
  const at::Tensor& master = parameter.master;
  Matrix matrix;
  matrix.parameter = &parameter;
  matrix.ratio = ratio_of(options_.adjust_lr_fn, parameter.spec().shape);
  matrix.momentum =
      offload_
          ? offload_->host().allocate(master.numel(), scalar_type(type), offload_->pins()).zero_().view(master.sizes())
          : at::zeros(master.sizes(), master.options().dtype(scalar_type(type)));
  return matrix;
}

void MuonOptimizer::step(int64_t step, double lr, const StepControl& control) {
  std::vector<Matrix*> ready;
  for (Matrix& matrix : matrices_) {
    if (matrix.parameter->gradient_shard.defined()) ready.push_back(&matrix);
  }
  step_matrices(ready, step, lr, control);
  adam_->step(step, lr, control);
}

void MuonOptimizer::step_some(std::span<Parameter* const> parameters, int64_t step, double lr,
                              const StepControl& control) {
  std::vector<Matrix*> ready;
  for (Parameter* parameter : parameters) {
    if (by_parameter_.contains(parameter)) ready.push_back(&matrix_of(*parameter));
  }
  step_matrices(ready, step, lr, control);
  adam_->step_some(parameters, step, lr, control);
}

std::vector<at::Tensor> MuonOptimizer::moments(size_t index) const {
  if (in_adam_[index]) return adam_->moments(*in_adam_[index]);
  for (AsyncCopy& copy : returns_) copy.synchronize();
  return {matrices_[in_muon_[index]].momentum};
}

const at::Tensor& MuonOptimizer::applied_steps(size_t index) const {
  return in_adam_[index] ? adam_->applied_steps(*in_adam_[index]) : no_steps_;
}

int64_t MuonOptimizer::state_bytes() const {
  int64_t bytes = adam_->state_bytes();
  for (const Matrix& matrix : matrices_) bytes += static_cast<int64_t>(matrix.momentum.nbytes());
  return bytes;
}

MuonOptimizer::Fetched MuonOptimizer::fetch(const Matrix& matrix) {
  Fetched fetched;
  const at::Tensor& host = matrix.momentum;
  fetched.momentum = offload_->device().allocate(host.numel(), host.scalar_type()).view(host.sizes());
  fetched.copy = offload_->to_device(fetched.momentum, host);
  return fetched;
}

at::Tensor MuonOptimizer::momentum_on_device(Matrix& matrix, int64_t step) {
  if (!offload_) return matrix.momentum;
  const auto index = static_cast<size_t>(&matrix - matrices_.data());
  auto mine = fetched_.extract(index);
  Fetched now = mine ? std::move(mine.mapped()) : fetch(matrix);
  matrix.momentum_step = step;
  // Groups may be collected in another order than that of matrices_. A momentum that this step has changed is not
  // fetched for the next: its copy to the host may still be in progress.
  const size_t next = index + 1;
  if (next < matrices_.size() && matrices_[next].momentum_step != step && !fetched_.contains(next)) {
    fetched_[next] = fetch(matrices_[next]);
  }
  now.copy.block_stream();
  return now.momentum;
}

void MuonOptimizer::keep_on_host(const Matrix& matrix, const at::Tensor& momentum) {
  if (!offload_) return;
  for (AsyncCopy& copy : returns_) copy.block_stream();  // so that at most one copy overlaps with what follows
  returns_.clear();
  returns_.push_back(offload_->to_host(matrix.momentum, momentum));
}

at::Tensor MuonOptimizer::matrix_part(Parameter& parameter, int64_t step, const StepControl& control) {
  begin(step);
  Matrix& matrix = matrix_of(parameter);
  const at::Tensor& gradient = parameter.gradient_shard;
  const bool is_bf16 = gradient.defined() && gradient.scalar_type() == at::kBFloat16;
  TITAN_CHECK(gradient.defined() && (is_bf16 || gradient.scalar_type() == at::kFloat) &&
                  gradient.sizes() == matrix.momentum.sizes() && gradient.device() == parameter.master.device(),
              parameter.name(), summary_of(gradient), summary_of(parameter.master));
  const at::Tensor momentum = momentum_on_device(matrix, step);
  const at::Tensor clipped = gradient.to(at::kFloat) * control.clip.to(at::kFloat);
  const at::Tensor fresh = momentum.to(at::kFloat).lerp(clipped, 1 - options_.momentum);
  store_rounded({parameter, rounding_seed_, step, KeptNumber::first_moment}, fresh, momentum, control);
  keep_on_host(matrix, momentum);
  return (options_.nesterov ? clipped.lerp(fresh, options_.momentum) : fresh).to(scalar_type(options_.dtype));
}

std::vector<at::Tensor> MuonOptimizer::matrix_updates(std::span<Parameter* const> parameters,
                                                      std::span<const at::Tensor> matrices) {
  TITAN_CHECK(parameters.size() == matrices.size(), parameters.size(), matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    TITAN_CHECK(matrices[i].defined() && matrices[i].sizes() == at::IntArrayRef(parameters[i]->spec().shape),
                parameters[i]->name(), summary_of(matrices[i]), parameters[i]->spec().shape);
  }
  std::vector<at::Tensor> updates = orthogonalised(matrices, iteration_);
  for (size_t i = 0; i < updates.size() && statistics_.numel > 0; ++i) measure(*parameters[i], updates[i]);
  return updates;
}

void MuonOptimizer::begin(int64_t step) {
  if (statistics_.numel == 0 || step == step_) return;
  step_ = step;
  measured_ = measured_.clone();  // the last step's tensor may still be in use
  const bool measures_again = options_.singular_value_freq > 0 && step % options_.singular_value_freq == 0;
  measured_.slice(0, 0, measures_again ? statistics_.numel : std::ssize(statistics_.of_kind)).zero_();
}

void MuonOptimizer::measure(const Parameter& parameter, const at::Tensor& update) {
  const auto number = statistics_.number.find(parameter.name());
  if (number == statistics_.number.end()) return;
  const auto kind = statistics_.of_kind.find(kind_of_matrix(parameter.name()));
  TITAN_CHECK(kind != statistics_.of_kind.end(), parameter.name());
  measured_[kind->second] += update.to(at::kFloat).square().sum(at::kDouble);
  const int64_t every = options_.singular_value_freq;
  if (every == 0 || step_ % every != 0) return;
  if (static_cast<size_t>(step_ / every) % statistics_.matrices != number->second) return;
  const int64_t first = std::ssize(statistics_.of_kind);
  measured_[first] = largest_singular_value(update);
  measured_[first + 1] = static_cast<double>(number->second);
}

void MuonOptimizer::take_matrix_update(Parameter& parameter, const at::Tensor& part) {
  TITAN_CHECK(part.defined() && part.sizes() == parameter.master.sizes() && part.device() == parameter.master.device(),
              parameter.name(), summary_of(part), summary_of(parameter.master));
  matrix_of(parameter).update = part;
}

void MuonOptimizer::step_matrices(std::span<Matrix* const> matrices, int64_t step, double lr,
                                  const StepControl& control) {
  // On a CPU several small matrices are updated at once, and their iterations share its threads (orthogonalise.cpp).
  std::vector<Matrix*> now;
  int64_t elements = 0;
  const auto step_them = [&] {
    update(now, step, control);
    for (Matrix* matrix : now) apply(*matrix, step, lr, control);
    now.clear(), elements = 0;
  };
  for (Matrix* matrix : matrices) {
    const at::Tensor& master = matrix->parameter->master;
    if (!now.empty() && (!master.is_cpu() || elements + master.numel() > kElementsAtOnce)) step_them();
    now.push_back(matrix);
    elements += master.numel();
  }
  if (!now.empty()) step_them();
}

void MuonOptimizer::update(std::span<Matrix* const> matrices, int64_t step, const StepControl& control) {
  std::vector<Matrix*> here;
  std::vector<Parameter*> parameters;
  std::vector<at::Tensor> wholes;
  for (Matrix* matrix : matrices) {
    if (matrix->update.defined()) continue;
    Parameter& parameter = *matrix->parameter;
    TITAN_CHECK(parameter.master.sizes() == at::IntArrayRef(parameter.spec().shape) &&
                    "a matrix that other ranks hold parts of is updated before the step",
                parameter.name());
    here.push_back(matrix);
    parameters.push_back(&parameter);
    wholes.push_back(matrix_part(parameter, step, control));
  }
  std::vector<at::Tensor> updates = matrix_updates(parameters, wholes);
  for (size_t i = 0; i < here.size(); ++i) here[i]->update = std::move(updates[i]);
}

void MuonOptimizer::apply(Matrix& matrix, int64_t step, double lr, const StepControl& control) {
  Parameter& parameter = *matrix.parameter;
  at::Tensor& master = parameter.master;
  parameter.compute_copy_written = false;
  const double rate = options_.lr * (lr / base_lr_) * matrix.lr_multiplier;
  const at::Tensor fresh = (master.to(at::kFloat) * (1 - rate * matrix.weight_decay))
                               .sub_(matrix.update.to(at::kFloat), rate * matrix.ratio);
  store_rounded({parameter, rounding_seed_, step, KeptNumber::weight}, fresh, master, control);
  matrix.update.reset();
}

}  // namespace titan
