#include "titan/ops/float8_products.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

#include "support/float8_scales.h"
#include "support/host_kernels.h"
#include "support/operation.h"

namespace titan {
namespace {

using enum Float8Recipe;

/// A matrix as its float8 values say, in float64; `extent`: what shares a scale.
at::Tensor rounded(const at::Tensor& matrix, Float8Extent extent, Float8Format format, bool power_of_two) {
  const Float8Casts casts = make_aten_float8_casts();
  const at::Tensor scale = float8_scale(casts.amax(matrix, extent), format, power_of_two);
  return as_double(casts.cast(matrix, scale, format, Float8Sides::data).data) / as_double(scale);
}

/// What each product of a recipe multiplies, by torchao's definition, in float64.
struct ProductReference {
  Float8Recipe recipe;

  at::Tensor operand(const at::Tensor& matrix, Float8Extent extent, bool is_gradient = false) const {
    if (recipe != tensorwise) return rounded(matrix, extent, Float8Format::e4m3, true);
    return rounded(matrix, Float8Extent::tensor, is_gradient ? Float8Format::e5m2 : Float8Format::e4m3, false);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& w) const {
    return operand(x, Float8Extent::row).mm(operand(w, Float8Extent::row).t());
  }
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w) const {
    const Float8Extent extent = recipe == rowwise_with_gw_hp ? Float8Extent::tensor : Float8Extent::column;
    return operand(dy, Float8Extent::row, true).mm(operand(w, extent));
  }
  at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) const {
    if (recipe == rowwise_with_gw_hp) return as_double(dy).t().mm(as_double(x));
    return operand(dy, Float8Extent::column, true).t().mm(operand(x, Float8Extent::column));
  }
};

/// Linear layers whose weights are in float8 as `in_float8` says.
struct Float8Case {
  Float8Case(const std::vector<int64_t>& rows, int64_t tokens, int64_t in, at::ScalarType type, Float8Options options,
             std::vector<bool> in_float8 = {}) {
    for (size_t i = 0; i < rows.size(); ++i) {
      owned.push_back(live_parameter("w" + std::to_string(i), normal({rows[i], in}, 10 + i, type, 0.02)));
      owned.back()->set_in_float8(in_float8.empty() || in_float8[i]);
      weights.push_back(owned.back().get());
    }
    x = leaf(normal({tokens, in}, 1, type));
    linears = std::make_unique<ParallelLinear>(weights, 0, make_float8_products(std::move(options)));
  }

  at::Tensor dy(size_t i) const { return normal(outputs[i].sizes(), 100 + i, outputs[i].scalar_type(), 1e-3); }
  at::Tensor run() {
    outputs = linears->forward(x, plain.context);
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < outputs.size(); ++i) gradients.push_back(dy(i));
    return backward(outputs, gradients, {x})[0];
  }

  PlainContext plain;
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> weights;
  std::unique_ptr<ParallelLinear> linears;
  at::Tensor x;
  std::vector<at::Tensor> outputs;
};

struct Sizes {
  std::vector<int64_t> rows;
  int64_t tokens, in;
};

class Float8Linear : public ::testing::TestWithParam<std::tuple<Float8Recipe, bool, at::ScalarType, Sizes>> {};

TEST_P(Float8Linear, EveryProductIsThatOfTheRoundedOperands) {
  const auto& [recipe, emulate, type, sizes] = GetParam();
  Float8Case test(sizes.rows, sizes.tokens, sizes.in, type, {.recipe = recipe, .emulate = emulate});
  const at::Tensor dx = test.run();
  const ProductReference reference{recipe};
  at::Tensor expected_dx = at::zeros(test.x.sizes(), at::kDouble);
  for (size_t i = 0; i < test.weights.size(); ++i) {
    const at::Tensor& w = test.weights[i]->weight();
    EXPECT_TRUE(near(test.outputs[i], reference.forward(test.x.detach(), w), tolerance(type)));
    EXPECT_EQ(test.outputs[i].scalar_type(), type);
    expected_dx += reference.input_gradient(test.dy(i), w);
    EXPECT_TRUE(near(test.weights[i]->gradient(), reference.weight_gradient(test.dy(i), test.x.detach()),
                     tolerance(at::kFloat)));
    EXPECT_EQ(test.weights[i]->gradient().scalar_type(), at::kFloat);
  }
  EXPECT_TRUE(near(dx, expected_dx, tolerance(type)));
  EXPECT_EQ(dx.scalar_type(), type);
}

TEST_P(Float8Linear, TheFirstGradientOfAStepOverwritesAndLaterOnesAdd) {
  const auto& [recipe, emulate, type, sizes] = GetParam();
  Float8Case test(sizes.rows, sizes.tokens, sizes.in, type, {.recipe = recipe, .emulate = emulate});
  test.run();  // the storage was full of NaN
  std::vector<at::Tensor> once;
  for (Parameter* weight : test.weights) once.push_back(weight->gradient().clone());
  test.run();
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(near(test.weights[i]->gradient(), 2 * once[i], tolerance(at::kFloat)));
  }
}

INSTANTIATE_TEST_SUITE_P(Float8, Float8Linear,
                         ::testing::Combine(::testing::Values(tensorwise, rowwise, rowwise_with_gw_hp),
                                            ::testing::Bool(), ::testing::Values(at::kFloat, at::kBFloat16),
                                            ::testing::Values(Sizes{{64}, 32, 48}, Sizes{{48, 16, 16}, 62, 48},
                                                              Sizes{{13, 11}, 17, 19})));

TEST(Float8Products, AWeightThatIsNotInFloat8IsMultipliedAsIfItStoodAlone) {
  for (const Float8Recipe recipe : {tensorwise, rowwise, rowwise_with_gw_hp}) {
    Float8Case mixed({16, 32}, 24, 48, at::kBFloat16, {.recipe = recipe}, {true, false});
    Float8Case converted({16}, 24, 48, at::kBFloat16, {.recipe = recipe});
    mixed.run();
    converted.run();
    const at::Tensor w = mixed.weights[1]->weight();
    EXPECT_TRUE(near(mixed.outputs[1], as_double(mixed.x).mm(as_double(w).t()), tolerance(at::kBFloat16)));
    EXPECT_TRUE(
        near(mixed.weights[1]->gradient(), as_double(mixed.dy(1)).t().mm(as_double(mixed.x)), tolerance(at::kFloat)));
    EXPECT_TRUE(same_bits(mixed.outputs[0], converted.outputs[0]));
    EXPECT_TRUE(same_bits(mixed.weights[0]->gradient(), converted.weights[0]->gradient()));
  }
}

TEST(Float8Products, WithoutFloat8AreDenseBitForBit) {
  Float8Case test({16, 32}, 24, 48, at::kBFloat16, {}, {false, false});
  const at::Tensor dx = test.run();
  Float8Case dense({16, 32}, 24, 48, at::kBFloat16, {}, {false, false});
  dense.linears = std::make_unique<ParallelLinear>(dense.weights, 0, std::make_shared<DenseProducts>());
  EXPECT_TRUE(same_bits(dx, dense.run()));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(test.outputs[i], dense.outputs[i]));
    EXPECT_TRUE(same_bits(test.weights[i]->gradient(), dense.weights[i]->gradient()));
  }
}

TEST(Float8Products, AWeightThatArrivesInFloat8GivesTheSameBitsAsOneThatIsCastHere) {
  for (const bool emulate : {false, true}) {
    Float8Case cast_here({64}, 32, 48, at::kFloat, {.emulate = emulate});
    const at::Tensor dx = cast_here.run();
    Float8Case arrived({64}, 32, 48, at::kFloat, {.emulate = emulate});
    Parameter& weight = *arrived.weights[0];
    const Float8Casts casts = make_aten_float8_casts();
    weight.float8_scale =
        float8_scale_of(float8_scale(casts.amax(weight.weight(), Float8Extent::tensor), Float8Format::e4m3));
    weight.set_weight(
        casts.cast(weight.weight(), weight.float8_scale.value, Float8Format::e4m3, Float8Sides::data).data);
    EXPECT_TRUE(same_bits(arrived.run(), dx));
    EXPECT_TRUE(same_bits(arrived.outputs[0], cast_here.outputs[0]));
    EXPECT_TRUE(same_bits(weight.gradient(), cast_here.weights[0]->gradient()));
  }
}

TEST(Float8Products, AScaleThatIsKeptForAWeightIsTheOneItIsCastWith) {
  Float8Case test({64}, 32, 48, at::kFloat, {});
  test.run();
  const at::Tensor own = test.outputs[0];
  test.weights[0]->float8_scale = float8_scale_of(at::full({}, 1e-3F));  // hardly anything of the weight is left
  test.run();
  EXPECT_FALSE(near(test.outputs[0], own, 0.5));
}

thread_local std::set<std::string>* called = nullptr;

/// The operations that `work` calls on this thread, with their overloads.
std::set<std::string> calls_of(const std::function<void()>& work) {
  std::set<std::string> names;
  called = &names;
  const auto note = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    if (const auto name = call.operator_name(); called && name) called->insert(c10::toString(*name));
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note));
  work();
  at::removeCallback(handle);
  called = nullptr;
  return names;
}

TEST(Float8Products, WithTheKernelsMakeNoScaleAndNoInverseInPlainOperations) {
  for (const Float8Recipe recipe : {tensorwise, rowwise, rowwise_with_gw_hp}) {
    const auto kernels = std::make_shared<FusedKernels>(host_kernels(), at::kCPU);
    Float8Case test({64, 32, 32}, 32, 48, at::kBFloat16, {.recipe = recipe, .casts = make_fused_float8_casts(kernels)});
    test.plain.context.scales.wanted = true;
    const std::set<std::string> calls = calls_of([&] { test.run(); });
    for (const char* name : {"aten::reciprocal", "aten::full_like", "aten::stack", "aten::clamp_min"}) {
      EXPECT_FALSE(calls.contains(name)) << name << " in recipe " << static_cast<int>(recipe);
    }
    Float8Case plain({64, 32, 32}, 32, 48, at::kBFloat16, {.recipe = recipe});
    plain.run();
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(test.outputs[i], plain.outputs[i]));
  }
}

/// Counts casts of matrices with so many rows.
Float8Casts counting_casts(int64_t rows, int64_t* count) {
  Float8Casts casts = make_aten_float8_casts();
  casts.cast = [cast = casts.cast, rows, count](const at::Tensor& matrix, const at::Tensor& scale, Float8Format format,
                                                Float8Sides sides) {
    *count += matrix.size(0) == rows && format == Float8Format::e4m3;
    return cast(matrix, scale, format, sides);
  };
  return casts;
}

TEST(Float8Products, AnInputThatNothingElseKeepsIsCastOnceAndKeptInFloat8) {
  for (const bool emulate : {false, true}) {
    for (const std::vector<bool>& in_float8 : {std::vector<bool>{true, true}, {true, false}}) {
      int64_t casts_alone = 0, casts_beside = 0;
      Float8Case alone({64, 16}, 32, 48, at::kBFloat16, {.emulate = emulate, .casts = counting_casts(32, &casts_alone)},
                       in_float8);
      Float8Case beside({64, 16}, 32, 48, at::kBFloat16, {}, in_float8);
      beside.linears = std::make_unique<ParallelLinear>(
          beside.weights, 0, make_float8_products({.emulate = emulate, .casts = counting_casts(32, &casts_beside)}),
          LinearSplit::input, nullptr, /*reads_alone=*/false);
      alone.plain.context.count_saved = beside.plain.context.count_saved = true;
      EXPECT_TRUE(same_bits(alone.run(), beside.run()));
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(same_bits(alone.outputs[i], beside.outputs[i]));
        EXPECT_TRUE(same_bits(alone.weights[i]->gradient(), beside.weights[i]->gradient()));
      }
      const bool narrow = in_float8[1];  // a weight in bf16 reads the input in bf16
      EXPECT_EQ(casts_alone, narrow ? 1 : 2);
      EXPECT_EQ(casts_beside, 2);
      EXPECT_EQ(alone.plain.context.saved.bytes(), 32 * 48 * (narrow ? 1 : 2));
      EXPECT_EQ(beside.plain.context.saved.bytes(), 32 * 48 * 2);
    }
  }
}

TEST(Float8Products, AnInputThatIsSavedAnywayIsKeptInFloat8FromAReplayToItsBackwardAlone) {
  for (const bool emulate : {false, true}) {
    for (const bool replays : {false, true}) {
      int64_t casts = 0;
      Float8Case test({64}, 32, 48, at::kBFloat16, {});
      test.linears = std::make_unique<ParallelLinear>(
          test.weights, 0, make_float8_products({.emulate = emulate, .casts = counting_casts(32, &casts)}),
          LinearSplit::output, nullptr, /*reads_alone=*/false);
      test.plain.context.recorder = Recorder(RecomputePolicy::full());
      test.plain.context.recorder.start(replays ? Recorder::Phase::replay : Recorder::Phase::first_run);
      test.plain.context.count_saved = true;
      const at::Tensor dx = test.run();
      EXPECT_EQ(casts, replays ? 1 : 2);
      EXPECT_EQ(test.plain.context.saved.bytes(), 32 * 48 * (replays ? 1 : 2));
      Float8Case plain({64}, 32, 48, at::kBFloat16, {.emulate = emulate});
      EXPECT_TRUE(same_bits(dx, plain.run()));
      EXPECT_TRUE(same_bits(test.weights[0]->gradient(), plain.weights[0]->gradient()));
    }
  }
}

TEST(Float8Products, AnInputOfAProductThatAReplayDoesNotNeedStaysInTheComputeDtype) {
  Float8Case test({64}, 32, 48, at::kBFloat16, {});
  test.linears = std::make_unique<ParallelLinear>(test.weights, 0, make_float8_products({}), LinearSplit::output,
                                                  nullptr, /*reads_alone=*/false);
  test.plain.context.recorder = Recorder(RecomputePolicy::full().set(ResultKind::linear, 0, Keep::placeholder));
  test.plain.context.recorder.start(Recorder::Phase::replay);
  test.plain.context.count_saved = true;
  test.run();
  EXPECT_EQ(test.plain.context.saved.bytes(), 32 * 48 * 2);
  Float8Case plain({64}, 32, 48, at::kBFloat16, {});
  plain.run();
  EXPECT_TRUE(same_bits(test.weights[0]->gradient(), plain.weights[0]->gradient()));
}

TEST(Float8Products, AWeightThatStaysIsCastOnceAMicrobatchWhereItsColumnsAreKept) {
  for (const bool emulate : {false, true}) {
    int64_t casts_kept = 0, casts_again = 0;
    Float8Case kept({64}, 32, 48, at::kBFloat16,
                    {.emulate = emulate, .keeps_weights = true, .casts = counting_casts(64, &casts_kept)});
    Float8Case again({64}, 32, 48, at::kBFloat16, {.emulate = emulate, .casts = counting_casts(64, &casts_again)});
    for (Float8Case* test : {&kept, &again}) {
      Parameter& weight = *test->weights[0];
      weight.float8_scale = make_aten_float8_casts().scales({weight.weight().abs().amax().to(at::kFloat)},
                                                            Float8Format::e4m3, /*power_of_two=*/false)[0];
      test->plain.context.count_saved = true;
    }
    for (int microbatch = 1; microbatch <= 2; ++microbatch) {
      EXPECT_TRUE(same_bits(kept.run(), again.run()));
      EXPECT_TRUE(same_bits(kept.outputs[0], again.outputs[0]));
      EXPECT_TRUE(same_bits(kept.weights[0]->gradient(), again.weights[0]->gradient()));
      EXPECT_EQ(casts_kept, microbatch);
      EXPECT_EQ(casts_again, 2 * microbatch);
    }
  }
}

TEST(Float8Products, AChangedWeightIsNotMultipliedByWhatAnEarlierMicrobatchKeptOfIt) {
  Float8Case kept({64}, 32, 48, at::kBFloat16, {.keeps_weights = true});
  Float8Case fresh({64}, 32, 48, at::kBFloat16, {});
  for (Float8Case* test : {&kept, &fresh}) test->weights[0]->float8_scale = float8_scale_of(at::full({}, 3e3F));
  kept.run();
  for (Float8Case* test : {&kept, &fresh}) test->weights[0]->set_weight(test->weights[0]->weight() * 0.5);
  EXPECT_TRUE(same_bits(kept.run(), fresh.run()));
}

TEST(Float8Products, TheFirstWeightGradientOfAStepIsMultipliedToWhereItBelongs) {
  const auto products = make_float8_products({});
  const std::unique_ptr<Parameter> weight = live_parameter("w", normal({32, 48}, 1, at::kBFloat16));
  weight->set_in_float8(true);
  PlainContext plain;
  const Operand x = products->for_weight_gradients(
      products->prepare(normal({64, 48}, 2, at::kBFloat16), {weight.get()}, {}, plain.context), {weight.get()});
  const Operand dy = products->ready(
      products->prepare_gradients({normal({64, 32}, 3, at::kBFloat16)}, {weight.get()}, plain.context)[0],
      {weight.get()});
  const auto add = [&] { products->weight_gradient(dy, x, *weight); };
  EXPECT_TRUE(calls_of(add).contains("aten::_scaled_mm.out"));
  const at::Tensor once = weight->gradient().clone();
  EXPECT_FALSE(calls_of(add).contains("aten::_scaled_mm.out"));  // it would overwrite what is there
  EXPECT_TRUE(same_bits(weight->gradient(), once + once));
}

TEST(Float8Products, RoundedWeightGradientsAreProductsOfTheComputeDtype) {
  Float8Case test({32}, 64, 16, at::kBFloat16, {.round_weight_gradient = true});
  test.run();
  const at::Tensor once = test.weights[0]->gradient().clone();
  EXPECT_TRUE(same_bits(once, once.to(at::kBFloat16).to(at::kFloat)));
}

TEST(Float8Products, GradientsInBf16AreThoseInFp32RoundedOnce) {
  for (const Float8Recipe recipe : {tensorwise, rowwise, rowwise_with_gw_hp}) {
    for (const bool round : {false, true}) {
      const Float8Options options{.recipe = recipe, .emulate = true, .round_weight_gradient = round};
      Float8Case wide({32, 16}, 64, 48, at::kBFloat16, options, {true, false});
      Float8Case narrow({32, 16}, 64, 48, at::kBFloat16, options, {true, false});
      for (Parameter* weight : narrow.weights) narrow_gradient(*weight);
      wide.run();
      narrow.run();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(same_bits(narrow.weights[i]->gradient(), wide.weights[i]->gradient().to(at::kBFloat16)));
      }
    }
  }
}

TEST(Float8Products, WhatIsNotFiniteReachesTheResult) {
  for (const Float8Recipe recipe : {tensorwise, rowwise}) {
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      Float8Case test({16}, 16, 16, at::kFloat, {.recipe = recipe, .emulate = true});
      test.x.data().narrow(0, 3, 1).narrow(1, 2, 1).fill_(odd);
      test.run();
      EXPECT_TRUE(test.outputs[0][3].isnan().any().item<bool>()) << static_cast<int>(recipe) << " " << odd;
    }
  }
}

TEST(Float8Products, AnOutputWithoutGradientLeavesItsWeightAlone) {
  Float8Case test({16, 16}, 16, 16, at::kFloat, {});
  test.outputs = test.linears->forward(test.x, test.plain.context);
  backward({test.outputs[1]}, {test.dy(1)}, {test.x});
  EXPECT_FALSE(test.weights[0]->gradient_written());
  EXPECT_TRUE(test.weights[1]->gradient_written());
}

}  // namespace
}  // namespace titan
