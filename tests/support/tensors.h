// What the tensor tests share: reproducible tensors and comparisons that say by how much two tensors differ.
// Distances are computed in float64 whatever the tensors' own dtype.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace titan {

/// A number of threads for the rest of a scope.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

/// N(0, scale²) numbers that depend on the seed only.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat, double scale = 1.0) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kFloat)).mul_(scale).to(type);
}

/// int64 numbers in [0, bound).
inline at::Tensor integers(at::IntArrayRef shape, int64_t bound, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, bound, shape, generator, at::TensorOptions(at::kLong));
}

inline at::Tensor as_double(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); }

/// ‖a − b‖ / ‖b‖, or ‖a‖ where b is zero; computed in float64.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const double size = as_double(b).norm().item<double>();
  const double gap = (as_double(a) - as_double(b)).norm().item<double>();
  return size > 0 ? gap / size : gap;
}

/// What an operation may be off by: a few roundings of its results for bf16, of its sums for fp32.
inline double tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 8e-3 : type == at::kFloat ? 2e-6 : 1e-12;
}

inline ::testing::AssertionResult near(const at::Tensor& actual, const at::Tensor& expected, double bound) {
  if (!actual.defined() || !expected.defined()) return ::testing::AssertionFailure() << "a tensor is undefined";
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << "shapes differ: " << actual.sizes() << " and " << expected.sizes();
  }
  const double found = distance(actual, expected);
  if (found <= bound) return ::testing::AssertionSuccess();  // false for NaN too
  return ::testing::AssertionFailure() << "relative distance " << found << " exceeds " << bound;
}

inline ::testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return ::testing::AssertionFailure() << "a tensor is undefined";
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return ::testing::AssertionFailure() << "shapes or types differ: " << a.sizes() << " and " << b.sizes();
  }
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  if (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "bits differ; relative distance " << distance(a, b);
}

}  // namespace titan
