#include "titan/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "support/allocations.h"
#include "support/operation.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

struct LossCase {
  LossCase(int64_t samples, int64_t length, int64_t dim, int64_t vocabulary, at::ScalarType type = at::kFloat)
      : hidden(leaf(normal({samples, length, dim}, 1, type))),
        labels(integers({samples, length}, vocabulary, 2)),
        weight(live_parameter("output", normal({vocabulary, dim}, 3, type, 0.3))) {}

  at::Tensor loss() { return linear_cross_entropy(hidden, labels, *weight, options, plain.context); }

  PlainContext plain;
  at::Tensor hidden, labels;
  std::unique_ptr<Parameter> weight;
  CrossEntropyOptions options;
};

struct Reference {
  at::Tensor loss, d_hidden, d_weight;
};

/// The whole logits in float64, then scale · Σ −log softmax over the valid labels.
Reference full_logits(const LossCase& test) {
  at::Tensor hidden = leaf(as_double(test.hidden));
  at::Tensor weight = leaf(as_double(test.weight->weight()));
  const at::Tensor logits = hidden.view({-1, hidden.size(-1)}).mm(weight.t());
  const at::Tensor labels = test.labels.flatten();
  const at::Tensor picked = logits.log_softmax(1).gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor loss = -(picked * labels.ne(kIgnoredLabel)).sum() * test.options.loss_scale.value;
  const auto gradients = backward({loss}, {at::ones({}, at::kDouble)}, {hidden, weight});
  return {loss, gradients[0], gradients[1]};
}

void expect_matches_full_logits(LossCase& test, at::ScalarType type) {
  const Reference expected = full_logits(test);
  const at::Tensor loss = test.loss();
  EXPECT_EQ(loss.scalar_type(), at::kDouble);
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_TRUE(near(loss, expected.loss, tolerance(type)));
  EXPECT_TRUE(test.weight->gradient_written()) << "training writes the weight's gradient in forward";
  EXPECT_TRUE(near(test.weight->gradient(), expected.d_weight, 2 * tolerance(type)));
  const at::Tensor d_hidden = backward({loss}, {at::ones({}, at::kDouble)}, {test.hidden})[0];
  EXPECT_EQ(d_hidden.sizes(), test.hidden.sizes());
  EXPECT_TRUE(near(d_hidden, expected.d_hidden, 2 * tolerance(type)));
}

class LossShapes : public ::testing::TestWithParam<std::tuple<int64_t, at::ScalarType>> {};

TEST_P(LossShapes, AnyNumberOfChunksGivesTheLossAndGradientsOfTheFullLogits) {
  const auto& [chunks, type] = GetParam();
  LossCase test(3, 7, 13, 101, type);  // 21 rows: most chunk counts do not divide them, 64 exceeds them
  test.options.chunks = chunks;
  test.options.loss_scale = 1.0 / 19;
  test.labels[0][3] = kIgnoredLabel;
  test.labels[2].narrow(0, 5, 2).fill_(kIgnoredLabel);
  expect_matches_full_logits(test, type);
}

INSTANTIATE_TEST_SUITE_P(CrossEntropy, LossShapes,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8, 20, 21, 64),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

TEST_P(LossShapes, AScaleThatLiesOnTheDeviceGivesTheBitsOfOneThatIsKnown) {
  const auto& [chunks, type] = GetParam();
  std::vector<std::vector<at::Tensor>> outcomes;
  for (const bool on_device : {false, true}) {
    LossCase test(3, 7, 13, 101, type);
    test.options.chunks = chunks;
    test.labels[0][3] = kIgnoredLabel;
    const double scale = 1.0 / 19;
    test.options.loss_scale =
        on_device ? LossScale(NAN, at::full({}, scale, at::TensorOptions(at::kDouble))) : LossScale(scale);
    const at::Tensor loss = test.loss();
    outcomes.push_back(
        {loss, backward({loss}, {at::ones({}, at::kDouble)}, {test.hidden})[0], test.weight->gradient()});
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(outcomes[1][i], outcomes[0][i])) << i;
}

TEST(CrossEntropy, OneRowAndOneWordAreLegal) {
  LossCase one_row(1, 1, 5, 7);
  expect_matches_full_logits(one_row, at::kFloat);
  LossCase one_word(2, 3, 4, 1);
  EXPECT_EQ(one_word.loss().item<double>(), 0.0);
}

TEST(CrossEntropy, LabelsThatAreAllIgnoredGiveZeroLossAndZeroGradients) {
  LossCase test(2, 5, 6, 17);
  test.labels.fill_(kIgnoredLabel);
  const at::Tensor loss = test.loss();
  EXPECT_EQ(loss.item<double>(), 0.0);
  EXPECT_TRUE(same_bits(test.weight->gradient().abs(), at::zeros({17, 6})));
  EXPECT_TRUE(same_bits(backward({loss}, {at::ones({}, at::kDouble)}, {test.hidden})[0].abs(), at::zeros({2, 5, 6})));
}

TEST(CrossEntropy, ALabelThatIsNoWordMakesTheLossNotANumber) {
  for (const int64_t label : {17, -5}) {
    LossCase test(2, 5, 6, 17);
    test.labels[1][2] = label;
    EXPECT_TRUE(std::isnan(test.loss().item<double>())) << label;
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  LossCase test(1, 9, 8, 33);
  test.weight->set_weight(test.weight->weight() * 300);
  expect_matches_full_logits(test, at::kFloat);
}

TEST(CrossEntropy, TheScaleMultipliesLossAndGradients) {
  LossCase whole(2, 4, 8, 19);
  LossCase scaled(2, 4, 8, 19);
  scaled.options.loss_scale = 0.25;
  EXPECT_DOUBLE_EQ(scaled.loss().item<double>(), 0.25 * whole.loss().item<double>());
  EXPECT_TRUE(same_bits(scaled.weight->gradient(), whole.weight->gradient() * 0.25)) << "a power of two rounds nothing";
}

TEST(CrossEntropy, WithoutAGraphTheLossIsTheSameAndNoGradientIsTouched) {
  LossCase test(2, 9, 8, 41);
  const double trained = test.loss().item<double>();
  LossCase evaluated(2, 9, 8, 41);
  at::NoGradGuard no_graph;
  EXPECT_EQ(evaluated.loss().item<double>(), trained);
  EXPECT_FALSE(evaluated.weight->gradient_written());
}

TEST(CrossEntropy, MicrobatchesAddTheirWeightGradients) {
  LossCase test(2, 6, 8, 23);
  test.loss();
  const at::Tensor once = test.weight->gradient().clone();
  test.loss();
  EXPECT_TRUE(near(test.weight->gradient(), 2 * as_double(once), tolerance(at::kFloat)));
}

TEST(CrossEntropy, AFrozenOutputMatrixGetsNoGradient) {
  LossCase test(2, 6, 8, 23);
  test.weight = live_parameter("output", test.weight->weight(), /*trainable=*/false);
  const at::Tensor loss = test.loss();
  EXPECT_FALSE(test.weight->gradient_written());
  EXPECT_TRUE(backward({loss}, {at::ones({}, at::kDouble)}, {test.hidden})[0].defined());
}

TEST(CrossEntropy, NeverHoldsMoreThanItsShareOfTheLogits) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t chunks : {1, 4, 8, 16}) {
      // Many rows, a large vocabulary and narrow hidden states, so that the logits are what counts.
      LossCase test(2, 1024, 8, 2048, type);
      test.options.chunks = chunks;
      const int64_t full = test.labels.numel() * 2048 * static_cast<int64_t>(sizeof(float));
      const PeakBytes peak = peak_allocation([&] { test.loss(); });
      const auto allowed = static_cast<int64_t>(1.1 * 2.0 * static_cast<double>(full) / static_cast<double>(chunks));
      EXPECT_LE(peak.tensors, allowed) << chunks << " chunks, " << c10::toString(type);
      EXPECT_GE(peak.tensors, full / chunks / 2) << "the counter sees the chunk's logits";
      EXPECT_LE(peak.scratch, product_scratch(test.labels.numel() / chunks, 8, 2048));
    }
  }
}

}  // namespace
}  // namespace titan
