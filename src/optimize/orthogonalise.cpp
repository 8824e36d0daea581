#include "titan/optimize/orthogonalise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "titan/base/error.h"
#include "titan/job/updates.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

/// On a CPU, of a symmetric product only the blocks on and above the diagonal are computed. Blocks of fewer rows make
/// the products too small for the library: at 128 rows it is as fast as with the whole.
constexpr int64_t kFewestRows = 128;
/// With n blocks (n + 1) / 2n of the operations are left; more than eight save little more.
constexpr int64_t kMostBlocks = 8;
/// Blocks of a larger matrix's products. One thread computes a block, so its bits do not depend on how many there are.
/// Two threads multiply 2048 × 8192 in such blocks about as fast as the library does with both (fp32, AVX-512).
constexpr int64_t kLargeRows = 256, kLargeColumns = 1024;

/// Calls work(i) for each i below `count`, each on one thread: LibTorch's operations inside it use no other thread, so
/// their bits do not depend on the number of threads. A single call needs this, too: outside, the library would use
/// all.
template <class Work>
void each_on_one_thread(size_t count, const Work& work) {
  if (count == 0) return;
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < count; i = next++) work(i);
  });
}

/// Whether a CPU's threads share the products of one matrix.
bool is_large(const at::Tensor& matrix) { return matrix.is_cpu() && matrix.numel() > kSmallMatrix; }

/// A part of a product's result.
struct Block {
  int64_t row, rows, column, columns;
};

/// Blocks of `height` × `width` that cover a product [rows, columns]; of a symmetric one those on and above the
/// diagonal.
std::vector<Block> blocks_of(int64_t rows, int64_t columns, int64_t height, int64_t width, bool symmetric) {
  std::vector<Block> blocks;
  for (int64_t row = 0; row < rows; row += height) {
    for (int64_t column = symmetric ? row : 0; column < columns; column += width) {
      blocks.push_back({row, std::min(height, rows - row), column, std::min(width, columns - column)});
    }
  }
  return blocks;
}

/// The blocks of a symmetric product, and their height, which `mirror` needs.
struct SymmetricBlocks {
  std::vector<Block> blocks;
  int64_t height;
};

/// Blocks of the products [rows, rows] of a matrix [rows, columns].
SymmetricBlocks symmetric_blocks(const at::Tensor& matrix) {
  const int64_t size = matrix.size(0);
  if (is_large(matrix)) return {blocks_of(size, size, kLargeRows, kLargeRows, /*symmetric=*/true), kLargeRows};
  const int64_t count = matrix.is_cpu() ? std::clamp<int64_t>(size / kFewestRows, 1, kMostBlocks) : 1;
  const int64_t height = (size + count - 1) / count;
  return {blocks_of(size, size, height, size, /*symmetric=*/true), height};
}

/// Blocks of the products that have the matrix's own shape.
std::vector<Block> whole_blocks(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  if (is_large(matrix)) return blocks_of(rows, columns, kLargeRows, kLargeColumns, /*symmetric=*/false);
  return {Block{0, rows, 0, columns}};
}

/// Computes the blocks of result ← beta·added + alpha·left·right; without `added` those of left·right.
void multiply(at::Tensor& result, const at::Tensor& left, const at::Tensor& right, const at::Tensor& added, double beta,
              double alpha, const std::vector<Block>& blocks) {
  const auto compute = [&](size_t i) {
    const Block& block = blocks[i];
    const auto cut = [&](const at::Tensor& whole) {
      return whole.narrow(0, block.row, block.rows).narrow(1, block.column, block.columns);
    };
    at::Tensor part = cut(result);
    const at::Tensor a = left.narrow(0, block.row, block.rows), b = right.narrow(1, block.column, block.columns);
    if (added.defined()) {
      at::addmm_out(part, cut(added), a, b, beta, alpha);
    } else {
      at::mm_out(part, a, b);
    }
  };
  if (left.is_cpu()) return each_on_one_thread(blocks.size(), compute);
  for (size_t i = 0; i < blocks.size(); ++i) compute(i);
}

/// Copies the blocks above the diagonal, which have `height` rows, to their places below it.
void mirror(at::Tensor& square, int64_t height) {
  const int64_t size = square.size(0);
  for (int64_t begin = 0; begin + height < size; begin += height) {
    const int64_t end = begin + height;
    square.slice(0, end).slice(1, begin, end).copy_(square.slice(0, begin, end).slice(1, end).t());
  }
}

/// ‖matrix‖ in its dtype, on a CPU from the norms of its rows. LibTorch's sum over all elements depends on the number
/// of threads, and for 2048 × 8192 elements it is off by 6·10⁻⁴ in fp32.
at::Tensor norm_of(const at::Tensor& matrix) {
  if (!matrix.is_cpu()) return matrix.norm();
  const int64_t rows = matrix.size(0);
  std::vector<at::Tensor> norms(static_cast<size_t>((rows + kLargeRows - 1) / kLargeRows));
  each_on_one_thread(norms.size(), [&](size_t i) {
    const int64_t begin = static_cast<int64_t>(i) * kLargeRows;
    norms[i] = matrix.slice(0, begin, std::min(begin + kLargeRows, rows)).to(at::kFloat).norm(2, /*dim=*/1);
  });
  at::Tensor whole;
  each_on_one_thread(1, [&](size_t) { whole = at::cat(norms).norm().to(matrix.scalar_type()); });
  return whole;
}

/// Whether products of bf16 matrices are computed in fp32, with results rounded to bf16: the same sums and roundings.
/// On Intel's processors without AMX, oneDNN's bf16 products have half the speed of fp32 ones (167 and 300 GFLOP/s on
/// two cores with AVX-512 BF16); on AMD's with AVX-512 BF16 they have twice the speed (201 and 97 on one core).
bool widens(const at::Tensor& matrix) {
  if (!matrix.is_cpu() || matrix.scalar_type() != at::kBFloat16) return false;
  const bool fast_on_amd = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16");
  return !__builtin_cpu_supports("amx-bf16") && !fast_on_amd;
}

at::Tensor iterated(const at::Tensor& matrix, const NewtonSchulz& iteration) {
  const auto [a, b, c] = iteration.coefficients;
  const bool tall = matrix.size(0) > matrix.size(1), wide = widens(matrix);
  const auto round = [&](at::Tensor& product) {
    if (wide) product.copy_(product.to(at::kBFloat16));
  };
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / norm_of(matrix).clamp_min(iteration.eps);
  if (wide) x = x.to(at::kFloat);
  at::Tensor next = at::empty_like(x), gram = at::empty({x.size(0), x.size(0)}, x.options()),
             polynomial = at::empty_like(gram);
  const SymmetricBlocks square = symmetric_blocks(x);
  const std::vector<Block> whole = whole_blocks(x);
  for (int64_t step = 0; step < iteration.steps; ++step) {
    multiply(gram, x, x.t(), {}, 0, 1, square.blocks);
    mirror(gram, square.height);
    round(gram);
    multiply(polynomial, gram, gram, gram, b, c, square.blocks);
    mirror(polynomial, square.height);
    round(polynomial);
    multiply(next, polynomial, x, x, a, 1, whole);
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
    if (matrix.is_cpu() && !is_large(matrix)) {
      small.push_back(i);
    } else {
      results[i] = iterated(matrix, iteration);
    }
  }
  each_on_one_thread(small.size(), [&](size_t i) { results[small[i]] = iterated(matrices[small[i]], iteration); });
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
