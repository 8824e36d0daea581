// What a plan needs to know of an optimizer: its moments, and what it computes of whole matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "titan/plan/precision.h"

namespace titan {

struct UpdateDescription {
  /// Names in torch's state, in order. Each moment has the shape of its parameter.
  std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"};
  std::optional<ElementType> moment_type = std::nullopt;  // none: optimizer.state_dtype
  /// The update is computed from the whole matrix, by one rank that sends each its part. All parameters that it steps
  /// have two dimensions. False: it is computed for each element.
  bool whole_matrices = false;
  ElementType matrix_type = ElementType::float32;  // in which matrices and their updates are sent
  int64_t working_matrices = 4;  // of the shape of the matrix, that computing its update holds at once
  /// Floating-point operations of the update of a matrix.
  std::function<double(int64_t rows, int64_t columns)> operations = {};
};

}  // namespace titan
