// The Newton–Schulz iteration of Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024):
//   X = M / max(‖M‖, eps);  repeat steps times: A = XXᵀ;  X ← aX + (bA + cA²)X
// It moves all singular values of M towards 1 and keeps its singular vectors. Of a matrix with more rows than columns
// it is computed on the transpose. With the published coefficients the singular values end between about 0.7 and 1.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace titan {

struct NewtonSchulz {
  std::array<double, 3> coefficients{};  // a, b, c
  int64_t steps = 0;
  double eps = 0;  // the smallest norm
};

/// The iteration on each of `matrices` [rows, columns], in its dtype: fp32 or bf16. The bits of a result depend on its
/// matrix and the device alone, not on the number of threads or on the other matrices.
std::vector<at::Tensor> orthogonalised(std::span<const at::Tensor> matrices, const NewtonSchulz& iteration);
inline at::Tensor orthogonalised(const at::Tensor& matrix, const NewtonSchulz& iteration) {
  return orthogonalised(std::span(&matrix, 1), iteration)[0];
}

/// The largest singular value of `matrix` [rows, columns], by power iteration in fp32: a lower bound. After 30 `steps`
/// it was up to 6 % low on updates of a training, whose largest values are nearly equal. 0-dimensional.
at::Tensor largest_singular_value(const at::Tensor& matrix, int64_t steps = 30);

}  // namespace titan
