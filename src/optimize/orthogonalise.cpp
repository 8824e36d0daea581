#include "titan/optimize/orthogonalise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

/// On a CPU, of a symmetric product only the blocks on and above the diagonal are computed. Blocks of fewer rows make
/// the products too small for the library: at 128 rows it is as fast as with the whole.
constexpr int64_t kFewestRows = 128;
/// With n blocks (n + 1) / 2n of the operations are left; more than eight save little more.
constexpr int64_t kMostBlocks = 8;

/// Mirrors the blocks above the diagonal.
void mirror(at::Tensor& square, int64_t rows) {
  const int64_t size = square.size(0);
  for (int64_t begin = 0; begin + rows < size; begin += rows) {
    const int64_t end = begin + rows;
    square.slice(0, end).slice(1, begin, end).copy_(square.slice(0, begin, end).slice(1, end).t());
  }
}

/// Up to so many elements a CPU iterates a matrix on one thread, and as many matrices at once as there are threads: on
/// two threads the products of the debug model's matrices spend a quarter of the time waiting for each other.
constexpr int64_t kSmall = 1 << 20;

/// result ← beta·added + alpha·left·right [n, n], which is known to be symmetric; no `added`: alpha·left·right.
void symmetric_product(at::Tensor& result, const at::Tensor& left, const at::Tensor& right, const at::Tensor& added,
                       double beta, double alpha) {
  const int64_t size = left.size(0);
  const int64_t blocks = left.is_cpu() ? std::clamp<int64_t>(size / kFewestRows, 1, kMostBlocks) : 1;
  const int64_t rows = (size + blocks - 1) / blocks;
  for (int64_t begin = 0; begin < size; begin += rows) {
    const int64_t end = std::min(begin + rows, size);
    at::Tensor part = result.slice(0, begin, end).slice(1, begin);
    const at::Tensor a = left.slice(0, begin, end), b = right.slice(1, begin);
    if (added.defined()) {
      at::addmm_out(part, added.slice(0, begin, end).slice(1, begin), a, b, beta, alpha);
    } else {
      at::mm_out(part, a, b);
    }
  }
  mirror(result, rows);
}

/// Whether products of bf16 matrices are computed in fp32, with results rounded to bf16: the same sums and roundings.
/// Without AMX oneDNN's bf16 products have half the speed of fp32 ones (167 and 300 GFLOP/s on two cores with AVX-512
/// BF16).
bool widens(const at::Tensor& matrix) {
  return matrix.is_cpu() && matrix.scalar_type() == at::kBFloat16 && !__builtin_cpu_supports("amx-bf16");
}

at::Tensor iterated(const at::Tensor& matrix, const NewtonSchulz& iteration) {
  const auto [a, b, c] = iteration.coefficients;
  const bool tall = matrix.size(0) > matrix.size(1), wide = widens(matrix);
  const auto round = [&](at::Tensor& product) {
    if (wide) product.copy_(product.to(at::kBFloat16));
  };
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(iteration.eps);
  if (wide) x = x.to(at::kFloat);
  at::Tensor next = at::empty_like(x), gram = at::empty({x.size(0), x.size(0)}, x.options()),
             polynomial = at::empty_like(gram);
  for (int64_t step = 0; step < iteration.steps; ++step) {
    symmetric_product(gram, x, x.t(), {}, 0, 1);
    round(gram);
    symmetric_product(polynomial, gram, gram, gram, b, c);
    round(polynomial);
    at::addmm_out(next, x, polynomial, x, a);
    round(next);
    std::swap(x, next);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type());
}

}  // namespace

std::vector<at::Tensor> orthogonalised(std::span<const at::Tensor> matrices, const NewtonSchulz& iteration) {
  std::vector<at::Tensor> results(matrices.size());
  std::vector<size_t> small;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const at::Tensor& matrix = matrices[i];
    TITAN_CHECK(matrix.defined() && matrix.dim() == 2 &&
                    (matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kBFloat16),
                summary_of(matrix));
    if (matrix.is_cpu() && matrix.numel() <= kSmall) {
      small.push_back(i);
    } else {
      results[i] = iterated(matrix, iteration);
    }
  }
  if (small.empty()) return results;
  // Also a single one: the library's products have other bits on more threads.
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < small.size(); i = next++) results[small[i]] = iterated(matrices[small[i]], iteration);
  });
  return results;
}

at::Tensor largest_singular_value(const at::Tensor& matrix, int64_t steps) {
  TITAN_CHECK(matrix.defined() && matrix.dim() == 2 && steps > 0, summary_of(matrix), steps);
  const at::Tensor m = matrix.to(at::kFloat);
  at::Tensor vector = at::ones({m.size(1)}, m.options()), image;
  for (int64_t step = 0; step < steps; ++step) {
    vector = vector / vector.norm().clamp_min(1e-30);  // a zero matrix has the value 0
    image = m.mv(vector);
    vector = m.t().mv(image);
  }
  return image.norm();
}

}  // namespace titan
