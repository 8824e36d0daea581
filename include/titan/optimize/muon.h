// Muon, with AdamW for what it does not step. Step t, gradient g after clipping, matrix p [rows, columns]:
//   m ← m + (1 − µ)(g − m);  u = g + µ(m − g) with Nesterov, else m;  o = orthogonalised(u)
//   p ← p·(1 − lr·wd) − lr·ratio·o,  ratio = √max(1, rows/columns) or 0.2·√max(rows, columns)
// as torch.optim.Muon of torch 2.11 (Jordan et al. 2024; the second ratio: Liu et al., "Muon is scalable for LLM
// training", 2025). o needs the whole matrix: Optimizer::matrix_updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/optimize/adam.h"
#include "titan/optimize/optimizer.h"
#include "titan/optimize/orthogonalise.h"

namespace titan {

/// What Optimizer::statistics needs to know of the plan.
struct MuonStatistics {
  std::map<std::string, int64_t> of_kind;  // by kind of matrix: index of update_rms.KIND (job/updates.h) in the result
  std::map<std::string, size_t> number;    // by name of a matrix that this rank measures: its number in the whole model
  size_t matrices = 0;                     // how many the whole model has
  int64_t numel = 0;                       // elements of the result; 0: no statistics
};

class MuonOptimizer : public Optimizer {
 public:
  /// `by_muon`: for each parameter whether Muon steps it; AdamW steps the others. The other arguments are those of
  /// AdamOptimizer.
  MuonOptimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                const std::vector<bool>& by_muon, const OptimizerSection& options, uint64_t rounding_seed = 0,
                std::shared_ptr<HostOffload> offload = nullptr, MuonStatistics statistics = {});

  void step(int64_t step, double lr, const StepControl& control) override;
  /// `parameters` must not include a matrix that several ranks hold: only `step` steps those.
  void step_some(std::span<Parameter* const> parameters, int64_t step, double lr, const StepControl& control) override;

  /// A matrix that Muon steps has one moment, its momentum; other parameters have AdamW's two.
  std::vector<at::Tensor> moments(size_t index) const override;
  /// Undefined for a matrix that Muon steps, whose update does not depend on the number of steps.
  const at::Tensor& applied_steps(size_t index) const override;
  int64_t state_bytes() const override;
  at::Tensor statistics() const override { return measured_; }

  at::Tensor matrix_part(Parameter& parameter, int64_t step, const StepControl& control) override;
  std::vector<at::Tensor> matrix_updates(std::span<Parameter* const> parameters,
                                         std::span<const at::Tensor> matrices) override;
  void take_matrix_update(Parameter& parameter, const at::Tensor& part) override;

 private:
  struct Matrix {
    Parameter* parameter = nullptr;
    double lr_multiplier = 1, weight_decay = 0;
    double ratio = 1;           // factor on the learning rate that depends on the shape
    at::Tensor momentum;        // [rows, columns] of the shard; on the host if moments are offloaded
    at::Tensor update;          // [rows, columns] of the shard, until `step` has applied it
    int64_t momentum_step = 0;  // the last step that changed the momentum, if moments are offloaded
  };
  struct Fetched {
    at::Tensor momentum;  // [rows, columns] of the shard
    AsyncCopy copy;
  };
  Matrix new_matrix(Parameter& parameter, ElementType type) const;
  Matrix& matrix_of(const Parameter& parameter) { return matrices_[by_parameter_.at(&parameter)]; }
  /// Resets the statistics if `step` is not the one that they are of.
  void begin(int64_t step);
  void measure(const Parameter& parameter, const at::Tensor& update);
  void step_matrices(std::span<Matrix* const> matrices, int64_t step, double lr, const StepControl& control);
  /// Computes the updates of those of `matrices` that this rank holds whole.
  void update(std::span<Matrix* const> matrices, int64_t step, const StepControl& control);
  void apply(Matrix& matrix, int64_t step, double lr, const StepControl& control);
  /// The momentum on the device. If momenta are on the host, this also starts the copy of the next matrix's.
  at::Tensor momentum_on_device(Matrix& matrix, int64_t step);
  Fetched fetch(const Matrix& matrix);
  void keep_on_host(const Matrix& matrix, const at::Tensor& momentum);

  MuonSection options_;
  NewtonSchulz iteration_;
  double base_lr_;  // optimizer.lr: `lr` / base_lr_ is the schedule's factor, which optimizer.muon.lr has, too
  uint64_t rounding_seed_;
  std::shared_ptr<HostOffload> offload_;
  std::vector<Matrix> matrices_;
  std::map<const Parameter*, size_t> by_parameter_;  // index in matrices_
  std::vector<std::optional<size_t>> in_adam_;       // by index of a parameter: its index in adam_, if AdamW steps it
  std::vector<size_t> in_muon_;                      // by index of a parameter: its index in matrices_ otherwise
  std::unique_ptr<AdamOptimizer> adam_;
  std::map<size_t, Fetched> fetched_;       // momenta that are being copied to the device, by index in matrices_
  mutable std::vector<AsyncCopy> returns_;  // copies of momenta to the host
  at::Tensor no_steps_;                     // never defined, so without a shape: applied_steps of matrices
  MuonStatistics statistics_;
  at::Tensor measured_;  // fp64 [statistics_.numel]: kNoStatistic until there is a number; undefined without matrices
  int64_t step_ = 0;     // the step that measured_ is of
};

}  // namespace titan
