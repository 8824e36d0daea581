// An optimizer for tests that needs matrices of blocks whole: momentum, and of each matrix one step towards the
// orthogonal matrix nearest to it. Written plainly, in fp32, to be read rather than to be fast.
//   m ← β·m + g;  X = m / ‖m‖;  p ← p − lr·(1.5·X − 0.5·X·Xᵀ·X)   for matrices of blocks
//   m ← β·m + g;  p ← p − lr·m                                      for everything else
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "support/layout_row.h"
#include "titan/base/error.h"
#include "titan/optimize/optimizer.h"
#include "titan/plan/plan.h"

namespace titan {

class WholeMatrixOptimizer : public Optimizer {
 public:
  WholeMatrixOptimizer(std::vector<Parameter*> parameters, const Plan& plan) : parameters_(std::move(parameters)) {
    for (const WeightGroupPlan& group : plan.groups) {
      for (const ParameterPlan& parameter : group.parameters) whole_[parameter.spec.name] = parameter.update == 1;
    }
    for (const Parameter* parameter : parameters_) {
      momenta_.push_back(parameter->trainable() ? at::zeros_like(parameter->master) : at::Tensor());
      applied_.push_back(at::zeros({}, at::kFloat));
    }
  }

  void step(int64_t, double lr, const StepControl& control) override {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i]->trainable() && parameters_[i]->gradient_shard.defined()) step_one(i, lr, control);
    }
    updates_.clear();
  }
  void step_some(std::span<Parameter* const> parameters, int64_t, double lr, const StepControl& control) override {
    for (Parameter* parameter : parameters) {
      if (parameter->trainable()) step_one(index_of(*parameter), lr, control);
    }
  }

  std::vector<at::Tensor> moments(size_t index) const override { return {momenta_[index]}; }
  const at::Tensor& applied_steps(size_t index) const override { return applied_[index]; }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const at::Tensor& momentum : momenta_)
      bytes += momentum.defined() ? static_cast<int64_t>(momentum.nbytes()) : 0;
    return bytes;
  }

  at::Tensor matrix_part(Parameter& parameter, int64_t, const StepControl& control) override {
    const at::Tensor& momentum = momenta_[index_of(parameter)];
    if (look_at(control.skip) == 0) momentum.mul_(kBeta).add_(parameter.gradient_shard * control.clip);
    return momentum.clone();
  }
  std::vector<at::Tensor> matrix_updates(std::span<Parameter* const>, std::span<const at::Tensor> matrices) override {
    std::vector<at::Tensor> updates;
    for (const at::Tensor& matrix : matrices) updates.push_back(update_of(matrix));
    return updates;
  }
  void take_matrix_update(Parameter& parameter, const at::Tensor& part) override { updates_[&parameter] = part; }

  /// The number of matrices that this rank has updated.
  int64_t updated() const { return updated_; }

 private:
  static constexpr double kBeta = 0.9;

  size_t index_of(const Parameter& parameter) const {
    return static_cast<size_t>(std::find(parameters_.begin(), parameters_.end(), &parameter) - parameters_.begin());
  }

  at::Tensor update_of(const at::Tensor& matrix) {
    ++updated_;
    const at::Tensor x = matrix / matrix.norm();
    return 1.5 * x - 0.5 * x.mm(x.t()).mm(x);
  }

  void step_one(size_t index, double lr, const StepControl& control) {
    Parameter& parameter = *parameters_[index];
    at::Tensor update;
    if (!whole_.at(parameter.name())) {
      update = matrix_part(parameter, 0, control);
    } else if (const auto taken = updates_.find(&parameter); taken != updates_.end()) {
      update = taken->second;
    } else {
      TITAN_CHECK(parameter.master.sizes() == at::IntArrayRef(parameter.spec().shape) &&
                      "a matrix that other ranks hold parts of is updated before the step",
                  parameter.name());
      update = update_of(matrix_part(parameter, 0, control));
    }
    if (look_at(control.skip) != 0) return;
    applied_[index].add_(1);
    parameter.master.sub_(update, lr);
  }

  std::vector<Parameter*> parameters_;
  std::map<std::string, bool> whole_;
  std::vector<at::Tensor> momenta_, applied_;
  std::map<const Parameter*, at::Tensor> updates_;  // parts that other ranks' work has given
  int64_t updated_ = 0;
};

}  // namespace titan
