#include "titan/ops/bias.h"

#include <gtest/gtest.h>

#include "support/operation.h"
#include "titan/base/error.h"

namespace titan {
namespace {

class BiasTypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(BiasTypes, TheBiasIsAddedAndItsGradientIsTheSumOverTokens) {
  const at::ScalarType type = GetParam();
  PlainContext plain;
  auto bias = live_parameter("b", normal({6}, 1, type));
  const at::Tensor values = normal({2, 5, 3, 2}, 2, type);  // [B, T, H, d]
  at::Tensor x = leaf(values);
  at::Tensor wide = leaf(as_double(values)), b = leaf(as_double(bias->weight()));
  const at::Tensor expected = wide + b.view({3, 2});
  const at::Tensor result = add_bias(x, *bias, 0, plain.context);
  EXPECT_TRUE(near(result, expected, tolerance(type)));
  const at::Tensor d = normal({2, 5, 3, 2}, 3, type);
  const auto got = backward({result}, {d}, {x});
  const auto wanted = backward({expected}, {as_double(d)}, {wide, b});
  EXPECT_TRUE(near(got[0], wanted[0], 1e-7));
  EXPECT_TRUE(near(bias->gradient(), wanted[1], 1e-5));
  at::Tensor again = leaf(normal({2, 5, 3, 2}, 4, type));
  backward({add_bias(again, *bias, 0, plain.context)}, {d}, {again});
  EXPECT_TRUE(near(bias->gradient(), 2 * wanted[1], 1e-5)) << "of a second microbatch is added";
}
INSTANTIATE_TEST_SUITE_P(Bias, BiasTypes, ::testing::Values(at::kFloat, at::kBFloat16));

TEST(Bias, AGradientInBf16IsTheSumInFp32RoundedOnceAndTakesNoSecond) {
  PlainContext plain;
  const auto wide = live_parameter("b", normal({6}, 1, at::kBFloat16));
  const auto narrow = live_parameter("b", normal({6}, 1, at::kBFloat16));
  narrow_gradient(*narrow);
  for (Parameter* bias : {wide.get(), narrow.get()}) {
    at::Tensor x = leaf(normal({2, 5, 3, 2}, 2, at::kBFloat16));
    backward({add_bias(x, *bias, 0, plain.context)}, {normal({2, 5, 3, 2}, 3, at::kBFloat16)}, {x});
  }
  EXPECT_TRUE(same_bits(narrow->gradient(), wide->gradient().to(at::kBFloat16)));
  EXPECT_THROW(narrow->add_to_gradient(at::ones({6})), InvariantError);
}

TEST(Bias, AResultThatIsKeptForTheReplayIsNotOverwritten) {
  RecomputePolicy policy = RecomputePolicy::full();
  policy.set(ResultKind::linear, 0, Keep::keep).set(ResultKind::linear, 1, Keep::placeholder);
  ImmediateSink sink;
  UnitContext context(UnitMode::train, policy, sink);
  auto bias = live_parameter("b", at::ones({4}));
  const at::Tensor kept = at::zeros({1, 2, 2, 2});
  context.recorder.start(Recorder::Phase::first_run);
  EXPECT_TRUE(add_bias(kept, *bias, 0, context).equal(at::ones({1, 2, 2, 2})));
  EXPECT_TRUE(kept.equal(at::zeros({1, 2, 2, 2})));
  const at::Tensor free = at::zeros({1, 2, 2, 2});
  EXPECT_TRUE(add_bias(free, *bias, 1, context).is_alias_of(free));
  context.recorder.start(Recorder::Phase::replay);
  const at::Tensor unread = placeholder({1, 2, 2, 2}, at::kFloat);
  EXPECT_EQ(add_bias(unread, *bias, 1, context).strides(), unread.strides());
}

}  // namespace
}  // namespace titan
