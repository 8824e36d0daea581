#include <gtest/gtest.h>

#include <tuple>

#include "support/operation.h"
#include "titan/ops/swiglu.h"

namespace titan {
namespace {

class SwigluShapes : public ::testing::TestWithParam<std::tuple<std::vector<int64_t>, at::ScalarType>> {};

TEST_P(SwigluShapes, OutputAndGradientsFollowTheFloat64Formula) {
  const auto& [shape, type] = GetParam();
  PlainContext plain;
  at::Tensor gate = leaf(normal(shape, 1, type, 2.0));
  at::Tensor up = leaf(normal(shape, 2, type));
  const at::Tensor result = swiglu(gate, up, plain.context);
  at::Tensor g = leaf(as_double(gate)), u = leaf(as_double(up));
  const at::Tensor expected = g * g.sigmoid() * u;
  EXPECT_TRUE(near(result, expected, tolerance(type)));
  const at::Tensor d = normal(shape, 3, type);
  const auto got = backward({result}, {d}, {gate, up});
  const auto wanted = backward({expected}, {as_double(d)}, {g, u});
  EXPECT_TRUE(near(got[0], wanted[0], tolerance(type)));
  EXPECT_TRUE(near(got[1], wanted[1], tolerance(type)));
}

INSTANTIATE_TEST_SUITE_P(Swiglu, SwigluShapes,
                         ::testing::Combine(::testing::Values(std::vector<int64_t>{1, 1, 1},
                                                              std::vector<int64_t>{2, 13, 29},
                                                              std::vector<int64_t>{3, 7, 256}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

TEST(Swiglu, GateAndUpMayBeColumnsOfOneMatrixAndSoMayTheirGradients) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    PlainContext plain;
    const at::Tensor matrix = normal({29, 2 * 37}, 4, type, 2.0), d = normal({29, 37}, 5, type);
    at::Tensor gate = leaf(matrix.narrow(1, 0, 37)), up = leaf(matrix.narrow(1, 37, 37));
    const at::Tensor expected = swiglu(gate, up, plain.context);
    const auto wanted = backward({expected}, {d}, {gate, up});
    at::Tensor strided_gate = matrix.narrow(1, 0, 37).set_requires_grad(true);
    at::Tensor strided_up = matrix.narrow(1, 37, 37).set_requires_grad(true);
    auto columns = std::make_shared<ColumnGradients>(std::vector<int64_t>{37, 37});
    const at::Tensor result = swiglu(strided_gate, strided_up, plain.context, columns);
    EXPECT_TRUE(same_bits(result, expected));
    const auto got = backward({result}, {d}, {strided_gate, strided_up});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got[i].stride(0), 2 * 37);
      EXPECT_TRUE(same_bits(got[i].contiguous(), wanted[i]));
    }
    EXPECT_TRUE(same_bits(columns->complete(got), at::cat({wanted[0], wanted[1]}, 1)));
  }
}

TEST(Swiglu, FarFromZeroTheGateIsOpenOrShutWithoutOverflow) {
  PlainContext plain;
  at::Tensor gate = leaf(at::tensor({-200.0f, -90.0f, 0.0f, 90.0f, 200.0f}));
  at::Tensor up = leaf(at::full({5}, 2.0f));
  const at::Tensor result = swiglu(gate, up, plain.context);
  EXPECT_TRUE(near(result, at::tensor({0.0, 0.0, 0.0, 180.0, 400.0}), 1e-6));
  for (const at::Tensor& gradient : backward({result}, {at::ones({5})}, {gate, up})) {
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace titan
