// Tables of calls with wrong tensors: each is refused at the function's entry, with exit code 70 and the tensors in the
// message. tests/structure/tensor_functions_test.cpp requires a row for each public function that takes tensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "support/files.h"
#include "titan/base/error.h"

namespace titan::test {

inline at::Tensor bf16(at::IntArrayRef shape) { return at::zeros(shape, at::TensorOptions(at::kBFloat16)); }
inline at::Tensor fp32(at::IntArrayRef shape) { return at::zeros(shape, at::TensorOptions(at::kFloat)); }
inline at::Tensor fp64(at::IntArrayRef shape) { return at::zeros(shape, at::TensorOptions(at::kDouble)); }
inline at::Tensor int64(at::IntArrayRef shape) { return at::zeros(shape, at::TensorOptions(at::kLong)); }
inline at::Tensor int32(at::IntArrayRef shape) { return at::zeros(shape, at::TensorOptions(at::kInt)); }
/// A tensor on another device than all others: without memory.
inline at::Tensor elsewhere(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(type));
}

/// One call, of something that the `Fixture` of its part has.
template <class Fixture>
struct WrongCall {
  const char* function;
  const char* what;
  std::function<void(Fixture&)> call;
  std::vector<std::string> shown;  ///< the values that the message has
};

template <class Fixture>
void PrintTo(const WrongCall<Fixture>& row, std::ostream* out) {
  *out << row.function << ": " << row.what;
}

/// Makes the call of a new fixture, and expects the refusal.
template <class Fixture>
void expect_refused(const WrongCall<Fixture>& row) {
  Fixture fixture;
  try {
    row.call(fixture);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvariantError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 70);
    for (const std::string& value : row.shown) EXPECT_PRED_FORMAT2(contains, error.what(), value);
  }
}

}  // namespace titan::test
