// Adam and AdamW over parameter shards. Step t (1-based), gradient g after clipping:
//   m = β1·m + (1−β1)·g;  v = β2·v + (1−β2)·g²;  p ← p·(1−lr·wd) − lr·(m/(1−β1^t)) / (√v/√(1−β2^t) + ε)
// (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019). Adam adds wd·p to g instead of shrinking p.
// bf16 masters or moments are computed in fp32 and rounded stochastically (kernels/stochastic_rounding.h). Below the
// class: the CPU loop of a step.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/stochastic_rounding.h"
#include "titan/optimize/optimizer.h"
#include "titan/optimize/rounded_store.h"

namespace titan {

class AdamOptimizer : public Optimizer {
 public:
  /// `parameters` in canonical order, masters allocated; `groups` index into them. `rounding_seed`: of stochastic
  /// rounding, with step, parameter and global index. With `offload` the moments are on the host and are copied to the
  /// device for the step, one parameter at a time.
  AdamOptimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                const OptimizerSection& options, uint64_t rounding_seed = 0,
                std::shared_ptr<HostOffload> offload = nullptr);

  /// A fused step of fp32 masters also writes the bf16 compute copies and marks them (Parameter::compute_copy_written).
  /// On a GPU it also finds the amaxes that the weight store wants (Parameter::amax).
  void step(int64_t step, double lr, const StepControl& control) override;
  void step_some(std::span<Parameter* const> parameters, int64_t step, double lr, const StepControl& control) override;

  const at::Tensor& first_moment(size_t index) const;
  const at::Tensor& second_moment(size_t index) const;
  std::vector<at::Tensor> moments(size_t index) const override { return {first_moment(index), second_moment(index)}; }
  const at::Tensor& applied_steps(size_t index) const override { return states_[index].applied; }
  int64_t state_bytes() const override;

 private:
  struct State {
    Parameter* parameter = nullptr;
    double lr_multiplier = 1.0;
    double weight_decay = 0.0;
    at::Tensor first;        // of the master's shape
    at::Tensor second;       // of the master's shape
    at::Tensor applied;      // scalar: row of counts_
    at::Tensor corrections;  // [2], on a GPU: row of corrections_
    float begun = 0;         // on a GPU: the count before the first step
  };
  /// Parameters adjacent in memory with equal settings, stepped together.
  struct Stretch {
    std::vector<const State*> states;
    at::Tensor weight, gradient, first, second;  // [elements of all]
    at::Tensor copy;                             // [elements of all]: the bf16 copies, if the step also writes them
  };
  /// Counts the step for these states and applies it, unless it is skipped.
  void apply(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control);
  /// Counts the step and computes the bias corrections. False if the step is known to be skipped.
  bool count(const std::vector<const State*>& states, const StepControl& control);
  void count_on_device(const std::vector<const State*>& states, const StepControl& control);
  std::vector<Stretch> stretches(const std::vector<const State*>& states) const;
  /// True if one pass can step both: same settings, same count, adjacent memory.
  static bool joins(const State& before, const State& after);
  /// True if a bf16 compute copy exists beside an fp32 master; a fused step writes both.
  static bool writes_copy(const Parameter& parameter);
  static void keep_frozen(Parameter& parameter);
  static bool copies_join(const Parameter& before, const Parameter& after);
  /// Where a fused step puts the amax of the parameter's compute copy; null if it does not write the copy, or the store
  /// does not want the amax.
  static uint32_t* amax_slot(const Parameter& parameter);
  /// Before the first kernel of a step.
  void begin_amaxes(const std::vector<const State*>& states, const StepControl& control) const;
  /// step_states for offloaded moments.
  void step_offloaded(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control);
  void step_states(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control);
  void step_fused_cpu(const Stretch& stretch, double lr, const StepControl& control) const;
  void step_fused_cuda(const Stretch& stretch, double lr, const StepControl& control) const;
  void step_bf16(const State& state, int64_t step, double lr, const StepControl& control) const;
  void store(const State& state, int64_t step, KeptNumber number, const at::Tensor& fresh, at::Tensor kept,
             const StepControl& control) const {
    store_rounded({*state.parameter, rounding_seed_, step, number}, fresh, std::move(kept), control);
  }
  /// On a GPU without the bias corrections, which the kernel reads from State::corrections.
  AdamConstants constants_of(const State& state, double lr) const;
  /// 1 − β^t, fp64, 0-dimensional, on the state's device.
  static at::Tensor bias_correction(const State& state, double beta);
  void step_foreach(const std::vector<const State*>& states, int64_t step, double lr, const StepControl& control) const;
  void step_one(const State& state, int64_t step, double lr, const StepControl& control) const;

  OptimizerSection options_;
  bool decoupled_decay_;       // AdamW; false: Adam
  at::ScalarType state_type_;  // dtype of the moments: fp32 or bf16
  uint64_t rounding_seed_;
  std::shared_ptr<HostOffload> offload_;
  std::vector<State> states_;
  at::Tensor counts_;              // fp32 [parameters], on the device of the masters, where skipped steps are known
  at::Tensor corrections_;         // on a GPU: fp32 [parameters, 2], 1 / (1 − β1^t) and 1 / √(1 − β2^t)
  bool counts_are_known_ = false;  // State::begun is set
  /// int64 [states], on a GPU: which rows of counts_ belong to the states that are stepped together, by the first
  /// state.
  std::map<const State*, at::Tensor> rows_;
  mutable std::vector<AsyncCopy> returns_;  // the latest copies of moments to the host
};

/// Amax slots (fp32, any shapes, on the device of `skip`, a scalar) before kernels raise them: 0, but unchanged if
/// the step is skipped, because the kernels then write nothing.
void zero_unless_skipped(std::vector<at::Tensor> slots, const at::Tensor& skip);

// The loop of an Adam step over plain memory, for any dtypes of weight, gradient and moments. cpu_kernels.cpp
// instantiates it for three instruction sets.

/// `store(which, i, value, out)` stores a new value of element i; `keep(i, weight)` is called with every new weight
/// before it is stored.
template <class Weight, class Gradient, class Moment, class Store, class Keep>
TITAN_INLINE void adam_loop(Weight* __restrict weight, const Gradient* __restrict gradient, Moment* __restrict first,
                            Moment* __restrict second, int64_t count, const AdamConstants& constants, double clip,
                            const Store& store, const Keep& keep) {
  const AdamConstants s = constants;
  const double coupled = constants.coupled;
  const float factor = static_cast<float>(clip);
  for (int64_t i = 0; i < count; ++i) {
    const float before = widen(weight[i]);
    // Adam's two terms may nearly cancel, and the update normalises the remainder to a full step: add them in fp64.
    const float unclipped = widen(gradient[i]);
    const float g = coupled == 0 ? unclipped * factor : static_cast<float>(unclipped * clip + coupled * before);
    const float m = s.beta1 * widen(first[i]) + (1 - s.beta1) * g;
    const float v = s.beta2 * widen(second[i]) + (1 - s.beta2) * g * g;
    const float w = before * s.decay - s.step_size * m / (__builtin_sqrtf(v) * s.root_scale + s.epsilon);
    store(KeptNumber::first_moment, i, m, first[i]);
    store(KeptNumber::second_moment, i, v, second[i]);
    store(KeptNumber::weight, i, w, weight[i]);
    keep(i, weight[i]);
  }
}

}  // namespace titan
