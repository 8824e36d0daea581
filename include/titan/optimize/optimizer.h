// Adam and AdamW over parameter shards. Step t (1-based), gradient g after clipping:
//   m = β1·m + (1−β1)·g;  v = β2·v + (1−β2)·g²;  p ← p·(1−lr·wd) − lr·(m/(1−β1^t)) / (√v/√(1−β2^t) + ε)
// (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019). Adam adds wd·p to g instead of shrinking p.
// What is kept in bf16, masters or moments, is computed in fp32 and rounded by chance (kernels/stochastic_rounding.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/kernels/adam.h"
#include "titan/kernels/stochastic_rounding.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/optimize/parameter_groups.h"
#include "titan/parallel/host_offload.h"

namespace titan {

enum class OptimizerImplementation { for_loop, foreach, fused };

struct OptimizerOptions {
  bool decoupled_decay = true;  // AdamW; false: Adam
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  OptimizerImplementation implementation = OptimizerImplementation::fused;
  at::ScalarType state_type = at::kFloat;  // of the moments: fp32 or bf16
  uint64_t rounding_seed = 0;              // with step, parameter and global index it decides how bf16 is rounded
};
OptimizerOptions make_optimizer_options(const JobConfig& config);

class Optimizer {
 public:
  /// `parameters` in canonical order, masters allocated; `groups` index into them. With `offload` the moments
  /// live on the host and are copied to the device for the step, one parameter after the other.
  Optimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
            const OptimizerOptions& options, std::shared_ptr<HostOffload> offload = nullptr);

  /// Steps the parameters that have a gradient shard now, as step `step` (1-based) with peak rate `lr`. The clip factor
  /// and the skip flag are read where the tensors are. Fused, a step of fp32 masters writes bf16 send shards in the
  /// same pass, and says so (Parameter::send_written).
  void step(int64_t step, double lr, const StepControl& control);
  /// The same for one weight group's parameters (stepping in backward).
  void step_some(std::span<Parameter* const> parameters, int64_t step, double lr, const StepControl& control);

  /// Moments of parameter `index`, shaped as its master; the host waits until they are there.
  const at::Tensor& first_moment(size_t index) const;
  const at::Tensor& second_moment(size_t index) const;
  int64_t state_bytes() const;

 private:
  struct State {
    Parameter* parameter = nullptr;
    double lr_multiplier = 1.0;
    double weight_decay = 0.0;
    at::Tensor first;
    at::Tensor second;
  };
  /// Neighbours in memory with the same settings, stepped as one stretch.
  struct Stretch {
    std::vector<const State*> states;
    at::Tensor weight, gradient, first, second;
    at::Tensor copy;  // the compute copies, where the step writes them too
  };
  std::vector<Stretch> stretches(const std::vector<const State*>& states) const;
  /// Whether there is a bf16 send shard beside an fp32 master, which a fused step writes too.
  static bool writes_copy(const Parameter& parameter);
  static bool copies_join(const Parameter& before, const Parameter& after);
  /// step_states for moments that live elsewhere.
  void step_offloaded(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control);
  void step_states(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control);
  void step_fused_cpu(const Stretch& stretch, int64_t step, double lr, const StepControl& control) const;
  void step_fused_cuda(const Stretch& stretch, int64_t step, double lr, const StepControl& control) const;
  void step_lean(const State& state, int64_t step, double lr, const StepControl& control) const;
  /// Puts fp32 `fresh` where `kept` is, in its dtype, unless the step is skipped.
  void store(const State& state, int64_t step, KeptNumber number, const at::Tensor& fresh, at::Tensor kept,
             const StepControl& control) const;
  AdamConstants constants_of(const State& state, int64_t step, double lr) const;
  void step_foreach(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control) const;
  void step_one(const State& state, int64_t step, double lr, const StepControl& control) const;

  OptimizerOptions options_;
  std::shared_ptr<HostOffload> offload_;
  std::vector<State> states_;
  mutable std::vector<AsyncCopy> returns_;  // of moments to the host, the latest
};

}  // namespace titan
