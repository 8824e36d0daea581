// What a plan needs to know of an optimizer: its moments, and which updates it computes from whole matrices.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/config/choices.h"
#include "titan/plan/description.h"
#include "titan/plan/precision.h"

namespace titan {

/// Rows and columns.
using MatrixShape = std::array<int64_t, 2>;

struct UpdateDescription {
  OptimizerKind optimizer = OptimizerKind::adamw;  // of torch, whose state and settings a checkpoint has
  /// Names in torch's state, in order. Each moment has the shape of its parameter.
  std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"};
  bool counts_steps = true;  // torch's state has the number of applied steps of each parameter
  std::optional<ElementType> moment_type = std::nullopt;  // none: optimizer.state_dtype
  /// The update is computed from the whole matrix, by one rank that sends each its part. All parameters that it steps
  /// have two dimensions. False: it is computed for each element.
  bool whole_matrices = false;
  /// Replicas share the updates only if at most this many ranks then do. A model has a few hundred matrices: with more
  /// ranks the work of each does not shrink, but owners send to all.
  int64_t max_sharing_ranks = 256;
  ElementType matrix_type = ElementType::float32;  // in which matrices and their updates are sent
  int64_t working_matrices = 4;  // of the shape of the matrix, that computing its update holds at once on a GPU
  /// Bytes that computing the updates of these matrices holds at once on a CPU, where `threads` share them.
  /// `exchanged`: the matrices and their updates are not among these bytes, because the exchange holds them.
  std::function<int64_t(std::span<const MatrixShape> matrices, int64_t threads, bool exchanged)> bytes_on_cpu = {};
  /// Floating-point operations of the update of a matrix.
  std::function<double(int64_t rows, int64_t columns)> operations = {};
  /// Its learning rate as a share of the scheduled one, and the name under which it is reported; empty: it is that one.
  double rate_share = 1;
  std::string rate_name = {};
  /// What Optimizer::statistics has of the parameters [name, shape] that it steps in the whole model.
  std::function<std::vector<StatisticDescription>(std::span<const ParameterSpec>)> statistics = {};
};

}  // namespace titan
