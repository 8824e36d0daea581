#include "titan/optimize/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "support/optimizer_options.h"
#include "support/tensors.h"

namespace titan {

/// Names a case in the reports of the tests, which the support matrix reads.
inline void PrintTo(OptimizerImplementation implementation, std::ostream* out) {
  constexpr const char* names[] = {"for-loop", "foreach", "fused"};
  *out << names[static_cast<size_t>(implementation)];
}

namespace {

/// Parameters with masters and gradient shards, in one block of memory (as the weight store lays them) or each on its
/// own.
struct Shards {
  Shards(const std::vector<std::vector<int64_t>>& shapes, bool one_block, at::ScalarType master = at::kFloat,
         at::ScalarType gradient = at::kFloat) {
    int64_t total = 0;
    for (const auto& shape : shapes) total += c10::multiply_integers(shape);
    masters = normal({total}, 1, master);
    gradients = at::zeros({total}, gradient);
    int64_t offset = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      ParameterSpec spec{"p" + std::to_string(i), shapes[i], {}};
      owned.push_back(std::make_unique<Parameter>(spec));
      auto cut = [&](const at::Tensor& block) {
        const at::Tensor view = block.narrow(0, offset, spec.numel()).view(shapes[i]);
        return one_block ? view : view.clone();
      };
      owned.back()->master = cut(masters);
      owned.back()->gradient_shard = cut(gradients);
      all.push_back(owned.back().get());
      offset += spec.numel();
    }
  }

  void draw_gradients(int64_t step, double scale = 0.1) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->gradient_shard.copy_(
          normal(all[i]->spec().shape, 1000 * static_cast<uint64_t>(step) + i, at::kFloat, scale));
    }
  }

  at::Tensor masters, gradients;
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> all;
};

/// Optimizer.h's formula, one element type: float64.
struct Float64Adam {
  explicit Float64Adam(const at::Tensor& start)
      : p(as_double(start).clone()), m(at::zeros_like(p)), v(at::zeros_like(p)) {}

  void step(int64_t t, double lr, double decay, double clip, const at::Tensor& gradient, const OptimizerSection& o) {
    const bool decoupled = o.name == OptimizerKind::adamw;
    at::Tensor g = as_double(gradient) * clip;
    if (!decoupled) g = g + decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(t));
    const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(t));
    if (decoupled) p = p * (1 - lr * decay);
    p = p - lr * (m / correction1) / (v.sqrt() / std::sqrt(correction2) + o.eps);
  }

  at::Tensor p, m, v;
};

StepControl control(const Shards& shards, double max_norm = 0) {
  return control_step(shards.all, max_norm, at::zeros({}, at::kDouble));
}

std::vector<ParameterGroup> one_group(size_t count) {
  ParameterGroup group;
  for (size_t i = 0; i < count; ++i) group.members.push_back(i);
  return {group};
}

const std::vector<std::vector<int64_t>> kShapes{{5, 7}, {13}, {64, 33}, {1}, {17, 3}};
constexpr OptimizerImplementation kImplementations[] = {
    OptimizerImplementation::for_loop, OptimizerImplementation::foreach, OptimizerImplementation::fused};

class Adam : public ::testing::TestWithParam<std::tuple<OptimizerImplementation, bool, bool>> {
 protected:
  OptimizerSection options() const {
    OptimizerSection options = optimizer_options(std::get<0>(GetParam()));
    options.name = std::get<1>(GetParam()) ? OptimizerKind::adamw : OptimizerKind::adam;
    return options;
  }
  bool one_block() const { return std::get<2>(GetParam()); }
};

TEST_P(Adam, SeveralStepsFollowTheFloat64FormulaWithMultipliersAndClipping) {
  Shards shards(kShapes, one_block());
  std::vector<ParameterGroup> groups{{"", 1.0, 1.0, {0, 2, 3}}, {"a", 0.25, 0.0, {1}}, {"b", 3.0, 2.0, {4}}};
  AdamOptimizer optimizer(shards.all, groups, options());
  std::vector<Float64Adam> expected;
  for (Parameter* parameter : shards.all) expected.emplace_back(parameter->master);
  for (int64_t t = 1; t <= 5; ++t) {
    shards.draw_gradients(t);
    const StepControl now = control(shards, /*max_norm=*/t % 2 == 0 ? 1.0 : 0.0);
    EXPECT_EQ(now.clip.item<float>() < 1.0f, t % 2 == 0) << "every second step clips";
    const double lr = 0.01 / static_cast<double>(t);
    optimizer.step(t, lr, now);
    for (const ParameterGroup& group : groups) {
      for (size_t i : group.members) {
        expected[i].step(t, lr * group.lr_multiplier, 0.1 * group.weight_decay_multiplier, now.clip.item<float>(),
                         shards.all[i]->gradient_shard, options());
      }
    }
  }
  for (size_t i = 0; i < shards.all.size(); ++i) {
    EXPECT_TRUE(near(shards.all[i]->master, expected[i].p, 1e-6)) << shards.all[i]->name();
    EXPECT_TRUE(near(optimizer.first_moment(i), expected[i].m, 1e-6)) << shards.all[i]->name();
    EXPECT_TRUE(near(optimizer.second_moment(i), expected[i].v, 1e-6)) << shards.all[i]->name();
  }
}

TEST_P(Adam, AGradientInBf16GivesTheBitsThatTheSameOneInFp32Gives) {
  Shards wide(kShapes, one_block()), narrow(kShapes, one_block(), at::kFloat, at::kBFloat16);
  AdamOptimizer of_wide(wide.all, one_group(kShapes.size()), options());
  AdamOptimizer of_narrow(narrow.all, one_group(kShapes.size()), options());
  for (int64_t t = 1; t <= 3; ++t) {
    narrow.draw_gradients(t);
    for (size_t i = 0; i < kShapes.size(); ++i) wide.all[i]->gradient_shard.copy_(narrow.all[i]->gradient_shard);
    const StepControl now = control(narrow, /*max_norm=*/1.0);
    EXPECT_TRUE(same_bits(now.norm, control(wide, 1.0).norm));
    of_wide.step(t, 0.01, now);
    of_narrow.step(t, 0.01, now);
    for (size_t i = 0; i < kShapes.size(); ++i) {
      EXPECT_TRUE(same_bits(narrow.all[i]->master, wide.all[i]->master)) << i;
      EXPECT_TRUE(same_bits(of_narrow.first_moment(i), of_wide.first_moment(i))) << i;
      EXPECT_TRUE(same_bits(of_narrow.second_moment(i), of_wide.second_moment(i))) << i;
    }
  }
}

TEST_P(Adam, ASkippedStepLeavesEveryBitAlone) {
  Shards shards(kShapes, one_block());
  AdamOptimizer optimizer(shards.all, one_group(kShapes.size()), options());
  shards.draw_gradients(1);
  optimizer.step(1, 0.01, control(shards));
  std::vector<at::Tensor> before;
  for (size_t i = 0; i < shards.all.size(); ++i) {
    for (const at::Tensor& t : {shards.all[i]->master, optimizer.first_moment(i), optimizer.second_moment(i)}) {
      before.push_back(t.clone());
    }
  }
  shards.all[2]->gradient_shard[0][0] = NAN;
  const StepControl bad = control(shards, 1.0);
  EXPECT_EQ(bad.skip.item<float>(), 1.0f);
  optimizer.step(2, 0.01, bad);
  for (size_t i = 0, at = 0; i < shards.all.size(); ++i) {
    for (const at::Tensor& t : {shards.all[i]->master, optimizer.first_moment(i), optimizer.second_moment(i)}) {
      EXPECT_TRUE(same_bits(t, before[at++]));
    }
  }
}

TEST_P(Adam, ASkippedStepIsNotCounted) {
  Shards shards(kShapes, one_block());
  AdamOptimizer optimizer(shards.all, one_group(kShapes.size()), options());
  std::vector<Float64Adam> expected;
  for (Parameter* parameter : shards.all) expected.emplace_back(parameter->master);
  int64_t applied = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    shards.draw_gradients(step);
    StepControl now = control(shards);
    if (step == 1 || step == 4) now.skip.fill_(1);
    optimizer.step(step, 0.01, now);
    if (step == 1 || step == 4) continue;
    ++applied;
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i].step(applied, 0.01, 0.1, 1.0, shards.all[i]->gradient_shard, options());
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(optimizer.applied_steps(i).item<float>(), 4);
    EXPECT_TRUE(near(shards.all[i]->master, expected[i].p, 1e-6)) << i;
  }
}

TEST_P(Adam, EveryParameterIsCorrectedByTheNumberOfItsOwnSteps) {
  Shards shards(kShapes, one_block());
  AdamOptimizer optimizer(shards.all, one_group(kShapes.size()), options());
  std::vector<Float64Adam> expected;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    expected.emplace_back(shards.all[i]->master);
    optimizer.applied_steps(i).fill_(static_cast<double>(i) * 3);
  }
  for (int64_t step = 1; step <= 3; ++step) {
    shards.draw_gradients(step);
    optimizer.step(step, 0.01, control(shards));
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i].step(3 * static_cast<int64_t>(i) + step, 0.01, 0.1, 1.0, shards.all[i]->gradient_shard, options());
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(optimizer.applied_steps(i).item<float>(), 3 * static_cast<float>(i) + 3);
    EXPECT_TRUE(near(shards.all[i]->master, expected[i].p, 1e-6)) << i;
  }
}

/// The same parameters with bf16 send shards, in one block or each on its own.
void add_copies(Shards& shards, bool one_block) {
  at::Tensor block = at::zeros({shards.masters.numel()}, at::kBFloat16);
  int64_t offset = 0;
  for (Parameter* parameter : shards.all) {
    const int64_t numel = parameter->spec().numel();
    const at::Tensor view = block.narrow(0, offset, numel).view(parameter->spec().shape);
    parameter->compute_copy = one_block ? view : view.clone();
    offset += numel;
  }
}

TEST_P(Adam, AFusedStepAlsoWritesTheBf16CopiesAndChangesNoBitOfTheMasters) {
  Shards with(kShapes, one_block()), without(kShapes, one_block());
  add_copies(with, one_block());
  const bool fused = options().implementation == OptimizerImplementation::fused;
  for (Shards* shards : {&with, &without}) {
    AdamOptimizer optimizer(shards->all, one_group(kShapes.size()), options());
    for (int64_t t = 1; t <= 3; ++t) {
      shards->draw_gradients(t);
      optimizer.step(t, 0.01, control(*shards, 1.0));
    }
  }
  for (size_t i = 0; i < with.all.size(); ++i) {
    const Parameter& parameter = *with.all[i];
    EXPECT_TRUE(same_bits(parameter.master, without.all[i]->master));
    EXPECT_EQ(parameter.compute_copy_written, fused);
    EXPECT_TRUE(same_bits(parameter.compute_copy,
                          fused ? parameter.master.to(at::kBFloat16) : at::zeros_like(parameter.compute_copy)));
    EXPECT_FALSE(without.all[i]->compute_copy_written);
  }
}

TEST_P(Adam, ASkippedStepDoesNotClaimToHaveWrittenCopies) {
  Shards shards(kShapes, one_block());
  add_copies(shards, one_block());
  AdamOptimizer optimizer(shards.all, one_group(kShapes.size()), options());
  shards.all[1]->gradient_shard.fill_(NAN);
  optimizer.step(1, 0.01, control(shards));
  for (const Parameter* parameter : shards.all) EXPECT_FALSE(parameter->compute_copy_written);
}

TEST_P(Adam, OnACpuAndSkippedStepsClaimToHaveFoundNoAmaxButThatOfAFrozenParameterStaysValid) {
  for (const bool is_skipped : {false, true}) {
    Shards shards(kShapes, one_block());
    add_copies(shards, one_block());
    shards.all[2]->freeze();
    AdamOptimizer optimizer(shards.all, one_group(kShapes.size()), options());
    for (Parameter* parameter : shards.all) parameter->amax = at::full({}, 7, at::kFloat);
    shards.draw_gradients(1);
    if (is_skipped) shards.all[1]->gradient_shard.fill_(NAN);
    optimizer.step(1, 0.01, control(shards));
    for (const Parameter* parameter : shards.all) {
      EXPECT_EQ(parameter->amax_written, !parameter->trainable()) << parameter->name();
      EXPECT_EQ(parameter->amax.item<float>(), 7) << parameter->name();
    }
  }
}

TEST(AmaxSlots, BeginAStepWithZeroAndOneThatIsSkippedWithWhatTheyHold) {
  const at::Tensor held = at::tensor({1.5F, INFINITY, NAN, 0.F, 2.5F});
  for (const float skip : {0.F, 1.F}) {
    const at::Tensor slots = held.clone(), apart = at::full({}, NAN, at::kFloat);
    zero_unless_skipped({slots[3], apart, slots[0], slots[2], slots[1]}, at::full({}, skip, at::kFloat));
    const at::Tensor zeroed = at::tensor({0.F, 0.F, 0.F, 0.F, 2.5F});
    EXPECT_TRUE(same_bits(slots, skip == 0 ? zeroed : held)) << "the last one is of another parameter";
    EXPECT_TRUE(same_bits(apart, at::full({}, skip == 0 ? 0.F : NAN, at::kFloat)));
  }
  zero_unless_skipped({}, at::zeros({}, at::kFloat));  // no parameter has one
}

TEST(AdamWithCoupledDecay, KeepsWhatIsLeftWhereDecayAllButCancelsTheClippedGradient) {
  constexpr double kClip = 0.3, kDecay = 0.125;
  OptimizerSection options = with_weight_decay(kDecay);
  options.name = OptimizerKind::adam;
  Shards shards({{1000}}, /*one_block=*/true);
  const at::Tensor weights = as_double(shards.all[0]->master);
  const at::Tensor almost = weights * (1 + 1e-5 * as_double(normal({1000}, 2)));
  shards.all[0]->gradient_shard.copy_(almost * (-kDecay / kClip));
  const double norm = as_double(shards.all[0]->gradient_shard).norm().item<double>();
  const StepControl now = control(shards, kClip * (norm + 1e-6));
  Float64Adam expected(shards.all[0]->master);
  expected.step(1, 0.01, kDecay, kClip, shards.all[0]->gradient_shard, options);
  AdamOptimizer optimizer(shards.all, one_group(1), options);
  optimizer.step(1, 0.01, now);
  EXPECT_TRUE(near(optimizer.first_moment(0), expected.m, 1e-6));
}

INSTANTIATE_TEST_SUITE_P(Optimizer, Adam,
                         ::testing::Combine(::testing::ValuesIn(kImplementations), ::testing::Bool(),
                                            ::testing::Bool()));

TEST(Optimizer, HowTheTensorsLieInMemoryChangesNoBitOfTheFusedStep) {
  Shards block(kShapes, /*one_block=*/true);
  Shards apart(kShapes, /*one_block=*/false);
  const OptimizerSection fused = optimizer_options(OptimizerImplementation::fused);
  // The second and the fourth have settings of their own and cut the block into stretches.
  const std::vector<ParameterGroup> groups{{"", 1.0, 1.0, {0, 2, 4}}, {"x", 0.5, 1.0, {1}}, {"y", 1.0, 0.0, {3}}};
  AdamOptimizer first(block.all, groups, fused);
  AdamOptimizer second(apart.all, groups, fused);
  for (int64_t t = 1; t <= 3; ++t) {
    block.draw_gradients(t);
    apart.draw_gradients(t);
    first.step(t, 0.01, control(block));
    second.step(t, 0.01, control(apart));
  }
  for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(same_bits(block.all[i]->master, apart.all[i]->master)) << i;
}

TEST(Optimizer, ParametersGivenInAnotherOrderThanTheyLieInMemoryAreSteppedAlike) {
  for (OptimizerImplementation implementation : kImplementations) {
    Shards straight(kShapes, true);
    Shards mixed(kShapes, true);
    std::vector<Parameter*> order{mixed.all[3], mixed.all[0], mixed.all[4], mixed.all[2], mixed.all[1]};
    AdamOptimizer first(straight.all, one_group(5), optimizer_options(implementation));
    AdamOptimizer second(order, one_group(5), optimizer_options(implementation));
    straight.draw_gradients(1);
    mixed.draw_gradients(1);
    first.step(1, 0.01, control(straight));
    second.step(1, 0.01, control(mixed));
    EXPECT_TRUE(same_bits(straight.masters, mixed.masters));
    EXPECT_EQ(second.first_moment(0).sizes(), order[0]->master.sizes());
    EXPECT_TRUE(same_bits(second.first_moment(1), first.first_moment(0)));
  }
}

TEST(Optimizer, SteppingGroupByGroupGivesTheBitsOfOneStep) {
  Shards whole(kShapes, true);
  Shards parts(kShapes, true);
  AdamOptimizer first(whole.all, one_group(5), optimizer_options());
  AdamOptimizer second(parts.all, one_group(5), optimizer_options());
  whole.draw_gradients(1);
  parts.draw_gradients(1);
  first.step(1, 0.01, control(whole));
  const StepControl shared = control(parts);
  second.step_some(std::span(parts.all).subspan(3), 1, 0.01, shared);
  second.step_some(std::span(parts.all).first(3), 1, 0.01, shared);
  EXPECT_TRUE(same_bits(whole.masters, parts.masters));
}

TEST(Optimizer, GroupsThatAreSkippedApartAreCountedApart) {
  Shards shards(kShapes, true);
  AdamOptimizer optimizer(shards.all, one_group(5), optimizer_options());
  for (int64_t step = 1; step <= 3; ++step) {
    shards.draw_gradients(step);
    StepControl now = control(shards);
    optimizer.step_some(std::span(shards.all).first(2), step, 0.01, now);
    if (step == 2) now.skip.fill_(1);
    optimizer.step_some(std::span(shards.all).subspan(2), step, 0.01, now);
  }
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(optimizer.applied_steps(i).item<float>(), i < 2 ? 3 : 2);
}

TEST(Optimizer, TheCopyOfAFrozenParameterStaysValid) {
  Shards shards({{4}, {4}}, true);
  add_copies(shards, true);
  shards.all[1]->freeze();
  shards.draw_gradients(1);
  AdamOptimizer optimizer(shards.all, one_group(2), optimizer_options());
  optimizer.step(1, 0.1, control(shards));
  for (const Parameter* parameter : shards.all) EXPECT_TRUE(parameter->compute_copy_written) << parameter->name();
}

TEST(Optimizer, AParameterWithoutGradientOrFrozenIsNotStepped) {
  Shards shards({{4}, {4}}, true);
  ParameterSpec spec{"frozen", {4}, {}, /*trainable=*/false};
  Parameter frozen(spec);
  frozen.master = normal({4}, 9);
  frozen.gradient_shard = at::ones({4});
  shards.draw_gradients(1);
  const StepControl now = control(shards);
  shards.all[0]->gradient_shard.reset();
  const at::Tensor untouched = shards.all[0]->master.clone();
  const at::Tensor frozen_before = frozen.master.clone();
  const at::Tensor stepped = shards.all[1]->master.clone();
  AdamOptimizer optimizer({shards.all[0], shards.all[1], &frozen}, one_group(3), optimizer_options());
  optimizer.step(1, 0.1, now);
  EXPECT_TRUE(same_bits(shards.all[0]->master, untouched));
  EXPECT_TRUE(same_bits(frozen.master, frozen_before));
  EXPECT_FALSE(same_bits(shards.all[1]->master, stepped));
  EXPECT_EQ(optimizer.state_bytes(), 2 * 8 * 4) << "a frozen parameter has no moments";
}

TEST(Optimizer, TheFirstStepMovesEveryWeightByAboutTheLearningRate) {
  Shards shards({{100}}, true);
  const at::Tensor before = shards.masters.clone();
  shards.gradients.copy_(normal({100}, 3).sign());
  AdamOptimizer optimizer(shards.all, one_group(1), with_weight_decay(0));
  optimizer.step(1, 0.01, control(shards));
  EXPECT_TRUE(near(before - shards.masters, 0.01 * shards.gradients, 1e-4));
}

}  // namespace
}  // namespace titan
