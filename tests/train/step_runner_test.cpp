#include "titan/train/step_runner.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <limits>

#include "support/model.h"
#include "support/optimizer_options.h"
#include "titan/base/error.h"
#include "titan/optimize/adam.h"

namespace titan {
namespace {

constexpr double kRate = 1e-2;

struct StepOptions {
  double max_norm = 0;
  bool step_in_backward = false;
};

/// A model with its optimizer, ready to step; and what its weights and gradients are.
struct Steps {
  explicit Steps(const StepOptions& options = {}, const std::string& family = "llama3", int64_t samples = 2)
      : small(request_of(family), plan_of(options, samples)) {
    for (const auto& parameter : small.model->parameter_handles()) parameters.push_back(parameter.get());
    ParameterGroup all;
    for (size_t i = 0; i < parameters.size(); ++i) all.members.push_back(i);
    optimizer = std::make_unique<AdamOptimizer>(parameters, std::vector{all}, optimizer_options());
    std::vector<std::vector<Parameter*>> groups;
    for (const WeightGroupPlan& group : small.plan.groups) {
      groups.emplace_back();
      for (const ParameterPlan& planned : group.parameters) {
        groups.back().push_back(&small.model->parameter(planned.spec.name));
      }
    }
    runner = std::make_unique<StepRunner>(*small.executor, *optimizer, std::move(groups), options.max_norm);
  }

  static ModelRequest request_of(const std::string& family) { return small_request(family); }
  static PlanRequest plan_of(const StepOptions& options, int64_t samples) {
    PlanRequest plan = small_plan();
    plan.samples = samples;
    plan.optimizer.early_step_in_backward = options.step_in_backward;
    return plan;
  }

  /// Keeps the gradients that the optimizer would read; for steps that are not made in backward.
  Executor::Observer record(std::map<std::string, at::Tensor>& gradients) {
    return [this, &gradients](const Action& action) {
      if (action.kind != ActionKind::squares) return;
      for (Parameter* parameter : parameters) gradients[parameter->name()] = parameter->gradient_shard.clone();
    };
  }

  std::map<std::string, at::Tensor> weights() const {
    std::map<std::string, at::Tensor> result;
    for (const Parameter* parameter : parameters) result[parameter->name()] = parameter->master.clone();
    return result;
  }

  /// Weights and moments.
  std::map<std::string, at::Tensor> state() const {
    std::map<std::string, at::Tensor> result = weights();
    for (size_t i = 0; i < parameters.size(); ++i) {
      result["first moment of " + parameters[i]->name()] = optimizer->first_moment(i).clone();
      result["second moment of " + parameters[i]->name()] = optimizer->second_moment(i).clone();
    }
    return result;
  }

  SmallModel small;
  std::vector<Parameter*> parameters;
  std::unique_ptr<AdamOptimizer> optimizer;
  std::unique_ptr<StepRunner> runner;
};

/// Two microbatches of which the first has three labels that count and the second all but one.
std::vector<BatchContext> uneven_microbatches(const SmallModel& small) {
  std::vector<BatchContext> microbatches{small.batch(1), small.batch(2)};
  microbatches[0].labels.fill_(kIgnoredLabel);
  microbatches[0].labels.select(0, 1).narrow(0, 4, 3).copy_(integers({3}, 59, 9));
  microbatches[1].labels.copy_(integers({2, 13}, 59, 10));
  microbatches[1].labels.select(0, 0).select(0, 0).fill_(kIgnoredLabel);
  for (BatchContext& batch : microbatches) batch.loss_scale = 1.0 / (3 + 25);
  return microbatches;
}

TEST(StepRunner, TheMeanIsOverTheValidTokensOfTheWholeStepHoweverUnevenlyTheyAreSpread) {
  Steps parts, whole({}, "llama3", /*samples=*/4);
  const std::vector<BatchContext> microbatches = uneven_microbatches(parts.small);
  BatchContext all = microbatches[0];
  all.tokens = at::cat({microbatches[0].tokens, microbatches[1].tokens});
  all.labels = at::cat({microbatches[0].labels, microbatches[1].labels});

  std::map<std::string, at::Tensor> of_parts, of_whole;
  const StepOutcome in_parts = parts.runner->run(microbatches, 1, kRate, {}, nullptr, parts.record(of_parts));
  const StepOutcome at_once = whole.runner->run(std::span(&all, 1), 1, kRate, {}, nullptr, whole.record(of_whole));

  EXPECT_NEAR(in_parts.loss.item<double>(), at_once.loss.item<double>(), 1e-6);
  EXPECT_NEAR(in_parts.control.norm.item<double>(), at_once.control.norm.item<double>(), 1e-5);
  ASSERT_EQ(of_parts.size(), parts.parameters.size());
  for (const auto& [name, gradient] : of_whole) EXPECT_TRUE(near(of_parts.at(name), gradient, 1e-5)) << name;
}

TEST(StepRunner, TheLossIsTheOneThatPlainTorchComputesOverAllValidTokens) {
  Steps steps;
  const std::vector<BatchContext> microbatches = uneven_microbatches(steps.small);
  double sum = 0;
  for (const BatchContext& batch : microbatches) {
    const at::Tensor logits = as_double(steps.small.executor->infer(batch, UnitMode::logits)).flatten(0, 1);
    sum += at::cross_entropy_loss(logits, batch.labels.flatten(), {}, at::Reduction::Sum, kIgnoredLabel).item<double>();
  }
  EXPECT_NEAR(steps.runner->run(microbatches, 1, kRate).loss.item<double>(), sum / 28, 1e-6);
}

TEST(StepRunner, BeforeWeightsAndMomentsChangeItSaysSo) {
  for (const StepOptions& options : {StepOptions{}, StepOptions{.step_in_backward = true}}) {
    Steps steps(options);
    std::map<std::string, at::Tensor> saved;
    steps.runner->before_change([&] {
      EXPECT_TRUE(saved.empty()) << "once a step";
      saved = steps.state();
    });
    for (int64_t step = 1; step <= 3; ++step) {
      const std::map<std::string, at::Tensor> before = steps.state();
      saved.clear();
      const std::vector<BatchContext> batches{steps.small.batch(2 * step), steps.small.batch(2 * step + 1)};
      steps.runner->run(batches, step, kRate);
      const std::map<std::string, at::Tensor> after = steps.state();
      ASSERT_EQ(saved.size(), before.size());
      for (const auto& [name, tensor] : saved) {
        EXPECT_TRUE(at::equal(tensor, before.at(name))) << name << " had changed by then, step " << step;
        EXPECT_FALSE(at::equal(tensor, after.at(name))) << name;
      }
    }
  }
}

class StepInBackward : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(StepInBackward, GivesTheBitsOfAnOrdinaryStepWithoutClipping) {
  const auto& [family, microbatch_count] = GetParam();
  Steps after({.max_norm = 0}, family), inside({.max_norm = 0.001, .step_in_backward = true}, family);
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<BatchContext> batches;
    for (int a = 0; a < microbatch_count; ++a)
      batches.push_back(after.small.batch(static_cast<uint64_t>(10 * step + a)));
    const StepOutcome ordinary = after.runner->run(batches, step, kRate);
    const StepOutcome stepped = inside.runner->run(batches, step, kRate);
    EXPECT_EQ(ordinary.loss.item<double>(), stepped.loss.item<double>()) << step;
    const double norm = ordinary.control.norm.item<double>();
    EXPECT_NEAR(stepped.control.norm.item<double>(), norm, 1e-12 * norm);  // summed in another order
    EXPECT_EQ(stepped.control.clip.item<float>(), 1.0f);
  }
  const std::map<std::string, at::Tensor> expected = after.weights();
  for (const auto& [name, weight] : inside.weights()) EXPECT_TRUE(same_bits(weight, expected.at(name))) << name;
  const Steps fresh({}, family);
  for (const auto& [name, weight] : fresh.weights()) EXPECT_FALSE(same_bits(weight, expected.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(FamiliesAndAccumulation, StepInBackward,
                         ::testing::Combine(::testing::Values("llama3", "llama3_2"), ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

class NotFinite : public ::testing::TestWithParam<bool> {};

TEST_P(NotFinite, LeavesWeightsAndMomentsAsThoughTheStepHadNotBeen) {
  const StepOptions options{.max_norm = 1.0, .step_in_backward = GetParam()};
  Steps disturbed(options), undisturbed(options);
  const std::map<std::string, at::Tensor> before = disturbed.weights();
  const BatchContext good = disturbed.small.batch(3);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    BatchContext batch = disturbed.small.batch(4);
    batch.loss_scale = bad;
    const StepOutcome outcome = disturbed.runner->run(std::span(&batch, 1), 1, kRate);
    EXPECT_EQ(outcome.control.skip.item<float>(), 1.0f);
    for (const auto& [name, weight] : disturbed.weights()) EXPECT_TRUE(same_bits(weight, before.at(name))) << name;
  }
  for (Steps* steps : {&disturbed, &undisturbed}) {
    EXPECT_EQ(steps->runner->run(std::span(&good, 1), 1, kRate).control.skip.item<float>(), 0.0f);
  }
  const std::map<std::string, at::Tensor> expected = undisturbed.weights();
  for (const auto& [name, weight] : disturbed.weights()) EXPECT_TRUE(same_bits(weight, expected.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(AfterAndInBackward, NotFinite, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "InBackward" : "AfterBackward"); });

int64_t live_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(StepRunner, MemoryStaysTheSameStepAfterStep) {
  Steps steps({.max_norm = 1.0});
  int64_t step = 0;
  auto run = [&](int64_t count) {
    for (const int64_t last = step + count; step < last;) {
      const std::vector<BatchContext> batches{steps.small.batch(1), steps.small.batch(2)};
      ++step;
      steps.runner->run(batches, step, kRate);
    }
  };
  run(20);
  const int64_t before = live_bytes();
  run(200);
  // A single forgotten scalar tensor a step would be beyond this.
  EXPECT_LT(live_bytes() - before, 200 * 64);
}

}  // namespace
}  // namespace titan
