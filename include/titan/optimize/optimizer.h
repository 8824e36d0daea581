// What a step asks of an optimizer. The plan knows it as an UpdateDescription (plan/update.h): its moments, and whether
// it computes updates of whole matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/job/parameter_groups.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/parallel/host_offload.h"
#include "titan/plan/plan.h"

namespace titan {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Steps the parameters that have a gradient shard. `step`: of the run, 1-based; it chooses the random bits of
  /// stochastic rounding. Bias correction counts only applied steps (applied_steps). `lr`: the scheduled rate, before
  /// the multipliers of parameter groups. The clip factor and the skip flag are read on the device; a skipped step
  /// changes neither weights nor moments. Sets Parameter::compute_copy_written of every parameter whose copy matches.
  virtual void step(int64_t step, double lr, const StepControl& control) = 0;
  /// The same for the parameters of one weight group (optimizer step in backward).
  virtual void step_some(std::span<Parameter* const> parameters, int64_t step, double lr,
                         const StepControl& control) = 0;

  /// Moments of parameter `index`, in the order of UpdateDescription::moments, shaped like its master; undefined if it
  /// is frozen. Waits until they are on the host.
  virtual std::vector<at::Tensor> moments(size_t index) const = 0;
  /// Number of steps that were applied to the parameter, torch's state["step"]: fp32, 0-dimensional, on the device of
  /// its master. A checkpoint may be loaded into it before the first step.
  virtual const at::Tensor& applied_steps(size_t index) const = 0;
  virtual int64_t state_bytes() const = 0;

  /// What the last step adds to the statistics that its updates declare (UpdateDescription::statistics), in their
  /// order: fp64, on the device of the masters; the sum over all ranks is the value. Undefined before the first step,
  /// or without statistics.
  virtual at::Tensor statistics() const { return {}; }

  // Updates of whole matrices whose parts are on several ranks: COLLECT sends what matrix_part returns to the owner,
  // TRANSFORM calls matrix_updates there, WAIT_TRANSFORM hands each rank its part of the update, and `step` applies it.
  // If this rank holds the whole matrix, `step` makes all three calls itself.

  /// This rank's part of what the update is computed from [rows, columns of the shard], in
  /// UpdateDescription::matrix_type: advances the parameter's moment, unless the step is skipped.
  virtual at::Tensor matrix_part(Parameter& parameter, int64_t step, const StepControl& control);
  /// The updates of whole `matrices` [rows, columns], one of each parameter, in the same dtype.
  virtual std::vector<at::Tensor> matrix_updates(std::span<Parameter* const> parameters,
                                                 std::span<const at::Tensor> matrices);
  /// This rank's `part` [rows, columns of the shard] of the update, for the next call of `step`.
  virtual void take_matrix_update(Parameter& parameter, const at::Tensor& part);
};

/// The optimizer that the plan's request names; each parameter is stepped as the plan says (ParameterPlan::update).
/// `parameters` in canonical order, masters allocated; `groups` index into them. `rounding_seed`: of stochastic
/// rounding, with step, parameter and global index. With `offload` the moments are on the host and are copied to the
/// device for the step.
std::unique_ptr<Optimizer> make_optimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                                          const Plan& plan, uint64_t rounding_seed,
                                          std::shared_ptr<HostOffload> offload);

}  // namespace titan
