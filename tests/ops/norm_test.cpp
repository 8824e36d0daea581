#include "titan/ops/norm.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/operation.h"

namespace titan {

/// Names a case in the reports of the tests, which the support matrix reads.
inline void PrintTo(NormType type, std::ostream* out) {
  constexpr const char* names[] = {"rmsnorm", "fused_rmsnorm", "layernorm", "np_layernorm"};
  *out << names[static_cast<size_t>(type)];
}

namespace {

constexpr double kEpsilon = 1e-5;

/// docs/models.md in float64: rms norms divide by the root mean square, layer norms centre first.
at::Tensor norm_formula(NormType type, const at::Tensor& x, const at::Tensor& weight) {
  const bool centred = type == NormType::layernorm || type == NormType::np_layernorm;
  const at::Tensor y = centred ? x - x.mean(-1, /*keepdim=*/true) : x;
  const at::Tensor unit = y * (y.square().mean(-1, /*keepdim=*/true) + kEpsilon).rsqrt();
  return weight.defined() ? unit * weight : unit;
}

struct NormCase {
  NormCase(NormType type, std::vector<int64_t> shape, at::ScalarType dtype, bool with_delta) : type(type) {
    if (type != NormType::np_layernorm) {
      weight = live_parameter("norm", normal({shape.back()}, 2, dtype).add_(1.0));
    }
    residual = leaf(normal(shape, 3, dtype));
    if (with_delta) delta = leaf(normal(shape, 4, dtype));
    norm = std::make_unique<Norm>(type, weight.get(), kEpsilon, 0);
  }
  std::vector<at::Tensor> inputs() const {
    return delta.defined() ? std::vector<at::Tensor>{residual, delta} : std::vector<at::Tensor>{residual};
  }

  NormType type;
  PlainContext plain;
  std::unique_ptr<Parameter> weight;
  std::unique_ptr<Norm> norm;
  at::Tensor residual, delta;
};

using Case = std::tuple<NormType, std::vector<int64_t>, at::ScalarType, bool>;
class NormTypes : public ::testing::TestWithParam<Case> {};

TEST_P(NormTypes, BothOutputsAndAllGradientsFollowTheFloat64Formula) {
  const auto& [type, shape, dtype, with_delta] = GetParam();
  NormCase test(type, shape, dtype, with_delta);
  const NormResult result = test.norm->forward(test.residual, test.delta, test.plain.context);

  // The reference starts from the sum as the dtype rounds it: that is the residual stream's value.
  at::Tensor x = as_double(with_delta ? test.residual.detach() + test.delta.detach() : test.residual);
  x.set_requires_grad(true);
  at::Tensor w = test.weight ? leaf(as_double(test.weight->weight())) : at::Tensor();
  const at::Tensor expected = norm_formula(type, x, w);
  EXPECT_TRUE(near(result.residual, x, 0.0));
  EXPECT_TRUE(near(result.normed, expected, tolerance(dtype)));
  EXPECT_EQ(result.normed.scalar_type(), dtype);

  const at::Tensor d_residual = normal(shape, 5, dtype);
  const at::Tensor d_normed = normal(shape, 6, dtype);
  std::vector<at::Tensor> got = backward({result.residual, result.normed}, {d_residual, d_normed}, test.inputs());
  std::vector<at::Tensor> wanted_inputs{x};
  if (w.defined()) wanted_inputs.push_back(w);
  std::vector<at::Tensor> wanted = backward({expected}, {as_double(d_normed)}, wanted_inputs);
  const at::Tensor dx = wanted[0] + as_double(d_residual);
  for (const at::Tensor& gradient : got) EXPECT_TRUE(near(gradient, dx, tolerance(dtype)));
  if (test.weight) {
    EXPECT_TRUE(near(test.weight->gradient(), wanted[1], tolerance(at::kFloat)))
        << "weight gradients are summed in fp32";
  }
}

INSTANTIATE_TEST_SUITE_P(Norm, NormTypes,
                         ::testing::Combine(::testing::Values(NormType::rmsnorm, NormType::fused_rmsnorm,
                                                              NormType::layernorm, NormType::np_layernorm),
                                            ::testing::Values(std::vector<int64_t>{3, 5, 7},
                                                              std::vector<int64_t>{2, 31, 64},
                                                              std::vector<int64_t>{1, 1, 37}),
                                            ::testing::Values(at::kFloat, at::kBFloat16), ::testing::Bool()));

TEST(Norm, EachOutputsGradientFlowsAlone) {
  for (bool with_delta : {false, true}) {
    NormCase test(NormType::rmsnorm, {4, 6}, at::kFloat, with_delta);
    NormResult result = test.norm->forward(test.residual, test.delta, test.plain.context);
    const at::Tensor through = normal({4, 6}, 7);
    for (const at::Tensor& gradient : backward({result.residual}, {through}, test.inputs())) {
      EXPECT_TRUE(same_bits(gradient, through));
    }
    result = test.norm->forward(test.residual, test.delta, test.plain.context);
    const std::vector<at::Tensor> gradients = backward({result.normed}, {through}, test.inputs());
    at::Tensor x = as_double(result.residual).set_requires_grad(true);
    const at::Tensor expected = norm_formula(test.type, x, as_double(test.weight->weight()));
    EXPECT_TRUE(near(gradients[0], backward({expected}, {as_double(through)}, {x})[0], tolerance(at::kFloat)));
  }
}

TEST(Norm, RmsnormRoundsBeforeTheWeightAndFusedRmsnormAfter) {
  NormCase plain(NormType::rmsnorm, {16, 64}, at::kBFloat16, false);
  NormCase fused(NormType::fused_rmsnorm, {16, 64}, at::kBFloat16, false);
  const at::Tensor x = plain.residual.detach().to(at::kFloat);
  const at::Tensor unit = x * (x.square().mean(-1, true) + kEpsilon).rsqrt();
  const at::Tensor weight = plain.weight->weight();
  EXPECT_TRUE(
      same_bits(plain.norm->forward(plain.residual, {}, plain.plain.context).normed, unit.to(at::kBFloat16) * weight));
  EXPECT_TRUE(same_bits(fused.norm->forward(fused.residual, {}, fused.plain.context).normed,
                        (unit * weight.to(at::kFloat)).to(at::kBFloat16)));
}

TEST(Norm, AWeightGradientInBf16IsTheSumInFp32RoundedOnce) {
  for (const NormType type : {NormType::rmsnorm, NormType::layernorm}) {
    NormCase wide(type, {31, 24}, at::kBFloat16, true), narrow(type, {31, 24}, at::kBFloat16, true);
    narrow_gradient(*narrow.weight);
    for (NormCase* test : {&wide, &narrow}) {
      const NormResult result = test->norm->forward(test->residual, test->delta, test->plain.context);
      backward({result.normed}, {normal({31, 24}, 7, at::kBFloat16)}, test->inputs());
    }
    EXPECT_TRUE(same_bits(narrow.weight->gradient(), wide.weight->gradient().to(at::kBFloat16)));
  }
}

TEST(Norm, WeightGradientsOfMicrobatchesAddUp) {
  NormCase test(NormType::layernorm, {5, 9}, at::kFloat, false);
  at::Tensor once;
  for (int run = 0; run < 2; ++run) {
    const NormResult result = test.norm->forward(test.residual, {}, test.plain.context);
    backward({result.normed}, {at::ones_like(result.normed)}, test.inputs());
    if (run == 0) once = test.weight->gradient().clone();
  }
  EXPECT_TRUE(same_bits(test.weight->gradient(), once + once));
}

TEST(AddClosing, SumsInTheFirstRunAndSendsTheGradientBothWays) {
  PlainContext plain;
  at::Tensor a = leaf(normal({3, 4}, 8));
  at::Tensor b = leaf(normal({3, 4}, 9));
  at::Tensor sum = add_closing(a, b, plain.context);
  EXPECT_TRUE(same_bits(sum, a.detach() + b.detach()));
  const at::Tensor d = normal({3, 4}, 10);
  for (const at::Tensor& gradient : backward({sum}, {d}, {a, b})) EXPECT_TRUE(same_bits(gradient, d));
}

TEST(AddClosing, InTheReplayTheSumHasNoMemoryButTheGradientFlows) {
  ImmediateSink sink;
  UnitContext context(UnitMode::train, RecomputePolicy::full(), sink);
  context.recorder.start(Recorder::Phase::replay);
  at::Tensor a = leaf(normal({30, 40}, 8));
  at::Tensor b = leaf(normal({30, 40}, 9));
  at::Tensor sum = add_closing(a, b, context);
  EXPECT_EQ(sum.sizes(), a.sizes());
  EXPECT_EQ(sum.storage().nbytes(), 4u);
  const at::Tensor d = normal({30, 40}, 10);
  EXPECT_TRUE(same_bits(backward({sum}, {d}, {a, b})[1], d));
}

}  // namespace
}  // namespace titan
