// When the executor asks for weights and gradient storage, proven with weights that are there at no other time.
#include "poisoned_residency.h"

#include <gtest/gtest.h>

#include "support/model.h"
#include "support/selections.h"

namespace titan {
namespace {

struct Watched {
  std::shared_ptr<PoisonedSlots> slots;
  std::shared_ptr<std::vector<std::string>> log = std::make_shared<std::vector<std::string>>();
  std::unique_ptr<SmallModel> small;

  Watched(const ModelRequest& request, int64_t slot_count, const PlanRequest& plan = small_plan()) {
    auto make = [&](const WeightGroupPlan& group, std::vector<Parameter*> members, const PlanRequest&) {
      if (!slots) slots = std::make_shared<PoisonedSlots>(slot_count, 16384);
      return std::make_unique<PoisonedResidency>(group, std::move(members), slots, log);
    };
    small = std::make_unique<SmallModel>(request, plan, ExecutorOptions{}, make);
  }
};

ModelRequest with_layers(const std::string& name, int64_t layers) {
  ModelRequest request = small_request(name);
  request.sizes.n_layers = layers;
  return request;
}

TEST(Residency, WeightsAreFetchedOneUnitAheadAndReducedAfterTheirLastUse) {
  Watched watched(with_layers("llama3", 1), 2);
  watched.small->run(watched.small->batch());
  EXPECT_EQ(
      *watched.log,
      (std::vector<std::string>{
          "acquire tok_embeddings for F0", "prefetch layers.0 for F1", "release tok_embeddings for F0",
          "acquire layers.0 for F1", "prefetch head for F2", "release layers.0 for F1", "acquire head for F2",
          "storage head", "release head for F2", "acquire head for B2", "prefetch layers.0 for B1",
          "release head for B2", "last reduce head", "acquire layers.0 for B1", "storage layers.0",
          "release layers.0 for B1", "last reduce layers.0", "storage tok_embeddings", "last reduce tok_embeddings"}));
}

TEST(Residency, ATiedMatrixIsFetchedForBothUsesAndReducedAfterTheEmbedding) {
  Watched watched(with_layers("llama3_2", 1), 3);
  watched.small->run(watched.small->batch());
  EXPECT_EQ(*watched.log, (std::vector<std::string>{"acquire tok_embeddings for F0",
                                                    "prefetch layers.0 for F1",
                                                    "release tok_embeddings for F0",
                                                    "acquire layers.0 for F1",
                                                    "prefetch head for F2",
                                                    "prefetch tok_embeddings for F2",
                                                    "release layers.0 for F1",
                                                    "acquire head for F2",
                                                    "acquire tok_embeddings for F2",
                                                    "storage head",
                                                    "storage tok_embeddings",
                                                    "release head for F2",
                                                    "release tok_embeddings for F2",
                                                    "acquire head for B2",
                                                    "acquire tok_embeddings for B2",
                                                    "prefetch layers.0 for B1",
                                                    "release head for B2",
                                                    "release tok_embeddings for B2",
                                                    "last reduce head",
                                                    "acquire layers.0 for B1",
                                                    "storage layers.0",
                                                    "release layers.0 for B1",
                                                    "last reduce layers.0",
                                                    "last reduce tok_embeddings"}));
}

TEST(Residency, WithTwoSlotsThatRotateEveryPolicyGivesTheBitsOfResidentWeights) {
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    PlanRequest plan = small_plan();
    plan.recompute = named.selection;
    Watched watched(small_request(), 2, plan);
    SmallModel resident(small_request());
    const BatchContext batch = resident.batch();
    EXPECT_TRUE(same_bits(watched.small->run(batch), resident.run(batch)));
    expect_same_gradients(watched.small->gradients(), resident.gradients());
    EXPECT_EQ(watched.slots->free(), 2u) << "every slot came back";
  }
}

TEST(Residency, ATiedModelNeedsAThirdSlotForItsHead) {
  SmallModel resident(small_request("llama3_2"));
  Watched watched(small_request("llama3_2"), 3);
  const BatchContext batch = resident.batch();
  EXPECT_TRUE(same_bits(watched.small->run(batch), resident.run(batch)));
  expect_same_gradients(watched.small->gradients(), resident.gradients());
  Watched too_few(small_request("llama3_2"), 2);
  EXPECT_THROW(too_few.small->run(batch), InvariantError);
}

TEST(Residency, GradientsOfEachMicrobatchAreReducedAndOnlyTheLastIsTheLast) {
  SmallModel resident(small_request());
  Watched watched(small_request(), 2);
  for (SmallModel* small : {&resident, watched.small.get()}) {
    for (int64_t m = 0; m < 3; ++m) {
      const BatchContext batch = small->batch(static_cast<uint64_t>(m));
      small->executor->forward(batch, m);
      small->executor->backward(batch, m, m == 2);
    }
  }
  const auto expected = resident.gradients();
  // Sums in another order than in one storage: equal within roundings.
  for (const auto& [name, gradient] : watched.small->gradients())
    EXPECT_TRUE(near(gradient, expected.at(name), 1e-6)) << name;
  auto count = [&](const std::string& entry) { return std::count(watched.log->begin(), watched.log->end(), entry); };
  for (const WeightGroupPlan& group : watched.small->plan.groups) {
    EXPECT_EQ(count("reduce " + group.name), 2) << group.name;
    EXPECT_EQ(count("last reduce " + group.name), 1) << group.name;
    EXPECT_EQ(count("storage " + group.name), 3) << group.name;
  }
}

TEST(Residency, InferenceFetchesAheadAndAsksForNoGradientStorage) {
  Watched watched(with_layers("llama3", 1), 2);
  watched.small->executor->infer(watched.small->batch(), UnitMode::evaluate);
  EXPECT_EQ(*watched.log, (std::vector<std::string>{"acquire tok_embeddings for F0", "prefetch layers.0 for F1",
                                                    "release tok_embeddings for F0", "acquire layers.0 for F1",
                                                    "prefetch head for F2", "release layers.0 for F1",
                                                    "acquire head for F2", "release head for F2"}));
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
  small.executor->finish_group(2);
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
  weights.gradient_storage();
  parameter.gradient().fill_(NAN);
  weights.reduce(false);
  EXPECT_FALSE(parameter.gradient_shard.defined());
  weights.reduce(true);
  EXPECT_TRUE(same_bits(parameter.gradient_shard, at::zeros({3, 2})));
}

}  // namespace
}  // namespace titan
