// Adam and AdamW over parameter shards. Step t (1-based), gradient g after clipping:
//   m = β1·m + (1−β1)·g;  v = β2·v + (1−β2)·g²;  p ← p·(1−lr·wd) − lr·(m/(1−β1^t)) / (√v/√(1−β2^t) + ε)
// (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019). Adam adds wd·p to g instead of shrinking p.
// What is kept in bf16, masters or moments, is computed in fp32 and rounded stochastically
// (kernels/stochastic_rounding.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
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
  void step_bf16(const State& state, int64_t step, double lr, const StepControl& control) const;
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

// The loop of an Adam step over plain memory, in whatever dtypes weight and moments are kept. Included by the cpu_*.cpp
// files that instantiate it for their instruction sets.

/// `store(which, i, value, out)` puts a new number of element i where it is kept; `keep(i, weight)` is called with
/// every new weight before it is stored.
template <class Weight, class Moment, class Store, class Keep>
TITAN_INLINE void adam_loop(Weight* __restrict weight, const float* __restrict gradient, Moment* __restrict first,
                            Moment* __restrict second, int64_t count, const AdamConstants& constants, double clip,
                            const Store& store, const Keep& keep) {
  const AdamConstants s = constants;
  const double coupled = constants.coupled;
  const float factor = static_cast<float>(clip);
  for (int64_t i = 0; i < count; ++i) {
    const float before = widen(weight[i]);
    // Adam's two terms may all but cancel, and it makes a step of full size of whatever is left: they are added in
    // fp64.
    const float g = coupled == 0 ? gradient[i] * factor : static_cast<float>(gradient[i] * clip + coupled * before);
    const float m = s.beta1 * widen(first[i]) + (1 - s.beta1) * g;
    const float v = s.beta2 * widen(second[i]) + (1 - s.beta2) * g * g;
    const float w = before * s.decay - s.step_size * m / (__builtin_sqrtf(v) * s.root_scale + s.epsilon);
    store(KeptNumber::first_moment, i, m, first[i]);
    store(KeptNumber::second_moment, i, v, second[i]);
    store(KeptNumber::weight, i, w, weight[i]);
    keep(i, weight[i]);
  }
}

// Tensors that lie one behind the other in memory, taken as one: what is done to each number by itself, or sums up in
// any order, then takes one pass for all. Private to optimize.

/// The next tensor begins where the previous ends, in the same storage: both are parts of one block.
bool adjacent(const at::Tensor& before, const at::Tensor& after);

/// `numel` numbers from the first one of `first` on.
at::Tensor merged(const at::Tensor& first, int64_t numel);

/// The same numbers in fewer tensors, in the order of memory: one for each run of neighbours. Empty ones are left out.
std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors);

}  // namespace titan
