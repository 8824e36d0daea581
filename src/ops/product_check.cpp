#include "product_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "titan/base/error.h"
#include "titan/kernels/cpu_values.h"

namespace titan {
namespace {

/// Rows and columns of the grid: 64 sums take a few milliseconds at the largest published depth.
constexpr int64_t kSamples = 8;
/// Shapes that are checked: a run has some dozens; texts of every length in `evaluate` have thousands.
constexpr size_t kMostShapes = 4096;

struct Matrix {
  const void* data;
  at::ScalarType type;
  int64_t row_stride, column_stride;

  explicit Matrix(const at::Tensor& matrix)
      : data(matrix.const_data_ptr()),
        type(matrix.scalar_type()),
        row_stride(matrix.stride(0)),
        column_stride(matrix.stride(1)) {}

  double at(int64_t row, int64_t column) const {
    const int64_t index = row * row_stride + column * column_stride;
    if (type == at::kFloat) return static_cast<const float*>(data)[index];
    if (type == at::kDouble) return static_cast<const double*>(data)[index];
    return widen(static_cast<const BFloat16Bits*>(data)[index]);
  }
};

bool is_readable(const at::Tensor& matrix) {
  const at::ScalarType type = matrix.scalar_type();
  return matrix.is_cpu() && matrix.dim() == 2 && (type == at::kFloat || type == at::kBFloat16 || type == at::kDouble);
}

int64_t sample(int64_t index, int64_t samples, int64_t size) {
  return samples == 1 ? 0 : index * (size - 1) / (samples - 1);
}

/// Largest error of a right product, as parts of the sum of magnitudes. BLAS may keep partial sums of bf16 products in
/// bf16, and oneDNN may have been told to multiply fp32 in bf16 (ONEDNN_DEFAULT_FPMATH_MODE; the start says so).
double largest_error(at::ScalarType type) {
  const bool is_told = std::getenv("ONEDNN_DEFAULT_FPMATH_MODE") || std::getenv("DNNL_DEFAULT_FPMATH_MODE");
  return is_told || type == at::kBFloat16 ? 8e-3 : 1e-4;
}

/// Products come from several host threads (a validation, generation, ranks as threads in tests), so this is shared.
bool is_first(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right) {
  using Shape = std::array<int64_t, 6>;
  static std::mutex mutex;
  static std::set<Shape> seen;
  const Shape shape{left.size(0),   left.size(1),   right.size(1), static_cast<int64_t>(result.scalar_type()),
                    left.stride(0), right.stride(0)};
  const std::lock_guard<std::mutex> lock(mutex);
  return seen.size() < kMostShapes && seen.insert(shape).second;
}

}  // namespace

std::string wrong_product(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right) {
  if (!is_readable(result) || !is_readable(left) || !is_readable(right) || result.numel() == 0) return {};
  const int64_t rows = result.size(0), columns = result.size(1), depth = left.size(1);
  const Matrix got(result), a(left), b(right);
  const double rounding = got.type == at::kBFloat16 ? 0x1p-8 : 0;  // twice the rounding of a right result
  const int64_t tall = std::min(kSamples, rows), wide = std::min(kSamples, columns);
  for (int64_t i = 0; i < tall; ++i) {
    for (int64_t j = 0; j < wide; ++j) {
      const int64_t row = sample(i, tall, rows), column = sample(j, wide, columns);
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double term = a.at(row, k) * b.at(k, column);
        sum += term;
        magnitude += std::abs(term);
      }
      const double found = got.at(row, column);
      // Operands that are not finite are another fault, and so is a sum beyond fp32.
      if (!std::isfinite(sum) || magnitude > 1e38) continue;
      const double allowed = largest_error(got.type) * magnitude + rounding * std::abs(sum) + 1e-30;
      if (std::abs(found - sum) <= allowed) continue;
      return fmt::format("[{}, {}] · [{}, {}] has {} in row {}, column {}, where a plain loop finds {}", rows, depth,
                         depth, columns, found, row, column, sum);
    }
  }
  return {};
}

void check_product_once(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right) {
  if (!result.is_cpu() || !is_first(result, left, right)) return;
  const std::string wrong = wrong_product(result, left, right);
  if (wrong.empty()) return;
  throw Error(ExitCode::silent_corruption,
              fmt::format("a matrix product of LibTorch is wrong on this machine: {}; unset the OMP_, MKL_ and ONEDNN_ "
                          "variables, or give training.threads = 1 or ONEDNN_MAX_CPU_ISA=SSE41",
                          wrong));
}

}  // namespace titan
