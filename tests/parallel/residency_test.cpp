// Weights that are there exactly when the program says, and weights that stay.
#include <gtest/gtest.h>

#include "poisoned_residency.h"
#include "support/model.h"
#include "support/selections.h"

namespace titan {
namespace {

/// One of two ranks that shard a model, each of which has all of it.
SmallModel poisoned_model(const ModelRequest& request, PlanRequest plan) {
  plan.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
  const auto slots = std::make_shared<PoisonedSlots>();
  return SmallModel(request, plan, {},
                    [slots](const WeightGroupPlan& group, std::vector<Parameter*> members, const PlanRequest&) {
                      return std::make_unique<PoisonedResidency>(group, std::move(members), slots);
                    });
}

TEST(Residency, WeightsThatAreThereAtNoOtherTimeGiveTheBitsOfThoseThatStay) {
  for (const char* family : {"llama3", "llama3_2"}) {
    for (const ReshardPolicy policy : {ReshardPolicy::standard, ReshardPolicy::always, ReshardPolicy::never}) {
      for (const NamedSelection& named : all_selections()) {
        SCOPED_TRACE(fmt::format("{}, {}", family, named.name));
        PlanRequest plan = small_plan();
        plan.recompute = named.selection;
        plan.reshard = policy;
        plan.accumulation = 2;
        SmallModel poisoned = poisoned_model(small_request(family), plan);
        SmallModel resident(small_request(family), plan);
        for (SmallModel* model : {&poisoned, &resident}) {
          forward(*model->executor, model->batch(1));
          backward(*model->executor, model->batch(1), 0, /*is_last=*/false);
        }
        EXPECT_TRUE(same_bits(poisoned.run(resident.batch(2)), resident.run(resident.batch(2))));
        expect_same_gradients(poisoned.gradients(), resident.gradients());
      }
    }
  }
}

TEST(ResidentWeights, NeighboursInStorageFormOneFusedOperand) {
  SmallModel small(small_request());
  small.run(small.batch());
  Parameter& wq = small.model->parameter("layers.1.attention.wq.weight");
  Parameter& wk = small.model->parameter("layers.1.attention.wk.weight");
  Parameter& wv = small.model->parameter("layers.1.attention.wv.weight");
  const int64_t rows = wq.spec().shape[0] + wk.spec().shape[0] + wv.spec().shape[0];
  EXPECT_TRUE(same_bits(wq.weight_rows(rows), at::cat({wq.weight(), wk.weight(), wv.weight()})));
  EXPECT_TRUE(same_bits(wq.gradient_rows(rows), at::cat({wq.gradient(), wk.gradient(), wv.gradient()})));
  EXPECT_TRUE(wq.weight_rows(rows).is_alias_of(wv.weight()));
}

TEST(ResidentWeights, CopiesAreMadeOncePerChangeOfTheMasters) {
  PlanRequest plan = small_plan();
  plan.compute = ElementType::bfloat16;
  SmallModel small(small_request(), plan);
  Parameter& output = small.model->parameter("output.weight");
  small.executor->infer(small.batch(), UnitMode::evaluate);
  EXPECT_EQ(output.weight().scalar_type(), at::kBFloat16);
  EXPECT_EQ(output.master.scalar_type(), at::kFloat);
  output.master.fill_(2.0);
  small.executor->infer(small.batch(), UnitMode::evaluate);
  EXPECT_NE(output.weight()[0][0].item<float>(), 2.0f) << "nobody said that the masters changed";
  small.executor->weights_changed();
  small.executor->infer(small.batch(), UnitMode::evaluate);
  EXPECT_EQ(output.weight()[0][0].item<float>(), 2.0f);
}

TEST(ResidentWeights, CopiesThatTheirWriterMadeAreNotMadeAgainButTheNextChangeMakesThem) {
  PlanRequest plan = small_plan();
  plan.compute = ElementType::bfloat16;
  SmallModel small(small_request(), plan);
  Parameter& output = small.model->parameter("output.weight");
  auto first_weight = [&] {
    small.executor->infer(small.batch(), UnitMode::evaluate);
    return output.weight()[0][0].item<float>();
  };
  first_weight();
  for (const auto& parameter : small.model->parameter_handles()) parameter->send_written = true;
  output.master.fill_(2.0);
  output.send.fill_(3.0);  // what a copy of the master would not hold
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 3.0f);
  EXPECT_FALSE(output.send_written) << "said once, believed once";
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 2.0f);

  output.master.fill_(4.0);
  output.send_written = true;  // but its neighbours in the group were not written
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 4.0f);
}

TEST(ResidentWeights, CopiesThatWereStaleBeforeAWriterMadeSomeAreMadeAgain) {
  PlanRequest plan = small_plan();
  plan.compute = ElementType::bfloat16;
  SmallModel small(small_request(), plan);
  Parameter& output = small.model->parameter("output.weight");
  for (const auto& parameter : small.model->parameter_handles()) parameter->send_written = true;
  output.master.fill_(5.0);
  small.executor->weights_changed();  // no copy was ever made
  small.executor->infer(small.batch(), UnitMode::evaluate);
  EXPECT_EQ(output.weight()[0][0].item<float>(), 5.0f);
}

TEST(ResidentWeights, TransientGradientsLiveFromTheirFirstUseToTheEndOfTheStep) {
  auto transient = [](const WeightGroupPlan& group, std::vector<Parameter*> members, const PlanRequest& request) {
    return std::make_unique<ResidentWeights>(group, std::move(members), request, at::kCPU, true);
  };
  SmallModel small(small_request(), small_plan(), {}, transient);
  SmallModel usual(small_request());
  for (SmallModel* each : {&small, &usual}) each->run(each->batch());
  expect_same_gradients(small.gradients(), usual.gradients());
  const Plan& plan = usual.executor->plan();
  int64_t all = 0;
  for (const WeightGroupPlan& group : plan.groups) all += group.numel * 4;
  EXPECT_EQ(usual.executor->gradient_bytes(), all);
  EXPECT_EQ(small.executor->gradient_bytes(), all);
  StepWork none;
  execute(*small.executor, {.kind = ActionKind::zero_gradient, .group = 2}, none);
  EXPECT_EQ(small.executor->gradient_bytes(), all - plan.groups[2].numel * 4);
  EXPECT_THROW(small.model->parameter("layers.1.attention.wq.weight").gradient(), InvariantError);
  EXPECT_TRUE(small.model->parameter("layers.0.attention.wq.weight").gradient_shard.defined());
}

TEST(ResidentWeights, AGroupThatNoMicrobatchTouchedReducesToZero) {
  ParameterSpec spec{"unused", {3, 2}, {}};
  Parameter parameter(spec);
  const Box box = parameter.shard_box();
  WeightGroupPlan group;
  group.name = "unused";
  group.parameters = {{spec, parameter.layout(), box, box, 3}};
  group.numel = group.shard_numel = 6;
  ResidentWeights weights(group, {&parameter}, {}, at::kCPU, false);
  weights.open_gradient();
  parameter.gradient().fill_(NAN);
  EXPECT_FALSE(parameter.gradient_shard.defined());
  weights.close_gradient();
  EXPECT_TRUE(same_bits(parameter.gradient_shard, at::zeros({3, 2})));
}

}  // namespace
}  // namespace titan
