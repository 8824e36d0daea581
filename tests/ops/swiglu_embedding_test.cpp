#include <gtest/gtest.h>

#include <tuple>

#include "support/operation.h"
#include "titan/ops/embedding.h"
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

at::Tensor anchor() { return at::empty({0}).set_requires_grad(true); }

TEST(Embedding, LooksRowsUpAndAddsTheGradientsOfRepeatedTokens) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    auto weight = live_parameter("tok_embeddings", normal({11, 7}, 1, type));
    PlainContext plain;
    const at::Tensor tokens = at::tensor({3, 3, 0, 10, 3, 0}, at::kLong).view({2, 3});
    at::Tensor start = anchor();
    const at::Tensor rows = embedding(start, tokens, *weight, nullptr, plain.context);
    EXPECT_TRUE(same_bits(rows, weight->weight().index_select(0, tokens.flatten()).view({6, 7})));
    const at::Tensor d = normal({6, 7}, 2, type);
    backward({rows}, {d}, {start});
    at::Tensor expected = at::zeros({11, 7}, at::kDouble);
    expected.index_add_(0, tokens.flatten(), as_double(d));
    EXPECT_TRUE(near(weight->gradient(), expected, tolerance(at::kFloat))) << "sums are fp32";
    EXPECT_EQ(weight->gradient()[1].abs().sum().item<double>(), 0.0) << "a word that does not occur";
  }
}

TEST(Embedding, ASecondMicrobatchAddsToTheFirst) {
  auto weight = live_parameter("tok_embeddings", normal({5, 4}, 1));
  PlainContext plain;
  for (int64_t token : {2, 2, 4}) {
    at::Tensor start = anchor();
    const at::Tensor rows = embedding(start, at::full({1, 1}, token, at::kLong), *weight, nullptr, plain.context);
    backward({rows}, {at::ones({1, 4})}, {start});
  }
  EXPECT_TRUE(same_bits(weight->gradient().sum(1), at::tensor({0.0f, 0.0f, 8.0f, 0.0f, 4.0f})));
}

TEST(Embedding, AFrozenTableGetsNoGradient) {
  auto weight = live_parameter("tok_embeddings", normal({5, 4}, 1), /*trainable=*/false);
  PlainContext plain;
  at::Tensor start = anchor();
  backward({embedding(start, at::zeros({1, 1}, at::kLong), *weight, nullptr, plain.context)}, {at::ones({1, 4})},
           {start});
  EXPECT_FALSE(weight->gradient_written());
}

}  // namespace
}  // namespace titan
