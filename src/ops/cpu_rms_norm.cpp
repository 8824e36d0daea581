#include "cpu_rms_norm.h"

namespace titan {
namespace {

constexpr int64_t kLanes = 32;  // partial sums kept side by side, added up in one fixed order

template <class T>
TITAN_INLINE float rounded(float value) {
  T memory;
  narrow(value, memory);
  return widen(memory);
}

TITAN_INLINE float sum_of(const float (&lanes)[kLanes]) {
  float total = 0;
  for (float lane : lanes) total += lane;
  return total;
}

/// Σ term(i) over [0, dim).
template <class Term>
TITAN_INLINE float row_sum(int64_t dim, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  float total = sum_of(lanes);
  for (; i < dim; ++i) total += term(i);
  return total;
}

template <class T>
TITAN_INLINE void rms_norm(T* y, float* scale, const T* x, const T* weight, RmsNormShape shape, float epsilon,
                           bool fused) {
  const int64_t dim = shape.dim;
  for (int64_t row = 0; row < shape.rows; ++row, x += dim, y += dim) {
    const float squares = row_sum(dim, [=](int64_t i) { return widen(x[i]) * widen(x[i]); });
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(dim) + epsilon);
    scale[row] = factor;
    if (fused) {
      for (int64_t i = 0; i < dim; ++i) narrow(widen(x[i]) * factor * widen(weight[i]), y[i]);
    } else {
      for (int64_t i = 0; i < dim; ++i) narrow(rounded<T>(widen(x[i]) * factor) * widen(weight[i]), y[i]);
    }
  }
}

template <class T>
TITAN_INLINE void rms_norm_backward(T* __restrict dx, float* __restrict weight_gradient, const T* __restrict dy,
                                    const T* d_residual, const T* __restrict x, const float* __restrict scale,
                                    const T* __restrict weight, RmsNormShape shape) {
  const int64_t dim = shape.dim;
  for (int64_t row = 0; row < shape.rows; ++row, x += dim, dy += dim, dx += dim) {
    const float factor = scale[row];
    const float projection = factor *
                             row_sum(dim, [=](int64_t i) { return widen(dy[i]) * widen(weight[i]) * widen(x[i]); }) /
                             static_cast<float>(dim);
    for (int64_t i = 0; i < dim; ++i) weight_gradient[i] += widen(dy[i]) * (widen(x[i]) * factor);
    if (d_residual) {
      for (int64_t i = 0; i < dim; ++i) {
        const float unit = widen(x[i]) * factor;
        narrow(factor * (widen(dy[i]) * widen(weight[i]) - unit * projection) + widen(d_residual[i]), dx[i]);
      }
      d_residual += dim;
    } else {
      for (int64_t i = 0; i < dim; ++i) {
        const float unit = widen(x[i]) * factor;
        narrow(factor * (widen(dy[i]) * widen(weight[i]) - unit * projection), dx[i]);
      }
    }
  }
}

}  // namespace

TITAN_VECTORISED void cpu_rms_norm(float* y, float* scale, const float* x, const float* weight, RmsNormShape shape,
                                   float epsilon, bool fused) {
  rms_norm(y, scale, x, weight, shape, epsilon, fused);
}

TITAN_VECTORISED void cpu_rms_norm(BFloat16Bits* y, float* scale, const BFloat16Bits* x, const BFloat16Bits* weight,
                                   RmsNormShape shape, float epsilon, bool fused) {
  rms_norm(y, scale, x, weight, shape, epsilon, fused);
}

TITAN_VECTORISED void cpu_rms_norm_backward(float* dx, float* weight_gradient, const float* dy, const float* d_residual,
                                            const float* x, const float* scale, const float* weight,
                                            RmsNormShape shape) {
  rms_norm_backward(dx, weight_gradient, dy, d_residual, x, scale, weight, shape);
}

TITAN_VECTORISED void cpu_rms_norm_backward(BFloat16Bits* dx, float* weight_gradient, const BFloat16Bits* dy,
                                            const BFloat16Bits* d_residual, const BFloat16Bits* x, const float* scale,
                                            const BFloat16Bits* weight, RmsNormShape shape) {
  rms_norm_backward(dx, weight_gradient, dy, d_residual, x, scale, weight, shape);
}

}  // namespace titan
