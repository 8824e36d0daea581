#include "titan/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/planned_traffic.h"
#include "support/selections.h"
#include "support/small_plan.h"
#include "titan/base/error.h"
#include "titan/plan/operations.h"
#include "titan/plan/program.h"

namespace titan {
namespace {

Plan plan_of(const ModelRequest& request, PlanRequest plan = small_plan()) {
  plan.sequence_length = request.sequence_length;
  return make_plan(describe_model(request), plan);
}

TEST(Plan, EachUnitHasOneGroupOfItsOwnInChainOrder) {
  const Plan plan = plan_of(small_request());
  ASSERT_EQ(plan.units.size(), 5u);
  ASSERT_EQ(plan.groups.size(), 5u);
  for (size_t u = 0; u < 5; ++u) {
    EXPECT_EQ(plan.units[u].groups, std::vector<size_t>{u});
    EXPECT_EQ(plan.groups[u].name, plan.units[u].name);
    EXPECT_EQ(plan.groups[u].reduce_after, u);
  }
}

PlanRequest shared_by(int64_t ranks) {
  PlanRequest request = small_plan();
  request.place = {DeviceMesh({1, 1, 1, ranks, 1}, ranks), 0};
  return request;
}

TEST(Plan, RanksOfASequenceKeepTheirShareOfActivationsAndKeysOfTheOthers) {
  ModelRequest model = small_request();
  model.sequence_length = 32;
  const Plan alone = plan_of(model);
  PlanRequest request = shared_by(4);
  const Plan gathered = plan_of(model, request);
  request.parallelism.context_parallel_rotate_method = Rotation::all_to_all;
  const Plan handed_on = plan_of(model, request);
  EXPECT_EQ(gathered.units[1].saved_bytes, alone.units[1].saved_bytes / 4);
  const auto backward_of_attention = [](const Plan& plan) {
    for (const TracedOperation& operation : plan.units[1].trace->operations()) {
      if (operation.name == "attention") return operation.backward_scratch;
    }
    return int64_t{-1};
  };
  const int64_t share = 2 * 2 * 8 * 12 * 4;  // keys and values, 2 samples of 8 places, 2 heads of 6, fp32
  const int64_t query_gradient = 2 * 8 * 24 * 4;
  EXPECT_EQ(backward_of_attention(gathered), (5 + 3) * share + query_gradient);
  EXPECT_EQ(backward_of_attention(handed_on), (2 + 3) * share + query_gradient);
  EXPECT_EQ(backward_of_attention(alone), 0);
}

int64_t forward_of(const Plan& plan) { return plan.validation_memory.back().bytes; }

TEST(Plan, AValidationHoldsWhatStaysAndItsOwnForward) {
  PlanRequest request = small_plan();
  EXPECT_TRUE(plan_of(small_request(), request).validation_memory.empty());
  EXPECT_EQ(plan_of(small_request(), request).validation_bytes(), 0);
  validate(request, 2, 13);
  const Plan plan = plan_of(small_request(), request);
  const std::map<std::string, int64_t> memory = memory_of(plan);
  EXPECT_EQ(plan.validation_bytes(),
            memory.at("parameters") + memory.at("gradients") + memory.at("optimizer state") + forward_of(plan));
  EXPECT_LT(plan.validation_bytes(), plan.training_bytes());
  EXPECT_EQ(plan.predicted_bytes(), plan.training_bytes());
  validate(request, 200, 13);
  const Plan large = plan_of(small_request(), request);
  EXPECT_NEAR(static_cast<double>(forward_of(large)), 100.0 * static_cast<double>(forward_of(plan)),
              0.01 * static_cast<double>(forward_of(large)));
  EXPECT_EQ(large.predicted_bytes(), large.validation_bytes());
  EXPECT_EQ(large.training_bytes(), plan.training_bytes());
}

TEST(Plan, AValidationIsNotCutIntoTrainingsMicrobatches) {
  PlanRequest request = small_plan();
  validate(request, 8, 13);
  const int64_t forward = forward_of(plan_of(small_request(), request));
  request.samples = 1;
  request.accumulation = 4;
  EXPECT_EQ(forward_of(plan_of(small_request(), request)), forward);
}

TEST(Plan, AValidationLiesBesideTheMemoryOfGraphsWhereThereAreAny) {
  PlanRequest request = small_plan();
  validate(request, 2, 13);
  request.cuda_graphs = true;
  const Plan plan = plan_of(small_request(), request);
  EXPECT_EQ(plan.validation_bytes(), plan.training_bytes() + forward_of(plan));
  request.optimizer.early_step_in_backward = true;  // for which nothing is recorded
  const Plan eager = plan_of(small_request(), request);
  EXPECT_LT(eager.validation_bytes(), eager.training_bytes()) << "and gradients pass";
}

TEST(Plan, ALossFoundInPlaceMakesOneMatrixOfLogits) {
  PlanRequest request = small_plan();
  validate(request, 64, 13);
  request.training.loss_chunks = 1;
  ModelRequest model = small_request();
  model.model.override_sizes.vocab_size = 5000;
  const int64_t plain = forward_of(plan_of(model, request));
  request.fused_loss = true;
  EXPECT_EQ(plain - forward_of(plan_of(model, request)), 64 * 13 * 5000 * 4);
}

TEST(Plan, ASequenceThatDoesNotDivideAmongItsRanksIsRefusedWithTheMultiple) {
  ModelRequest model = small_request();
  model.sequence_length = 12;
  try {
    plan_of(model, shared_by(4));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_NE(std::string(error.what()).find("use a multiple of 8"), std::string::npos) << error.what();
  }
  PlanRequest row = shared_by(4);
  row.parallelism.context_parallel_load_balancer = LoadBalance::none;
  EXPECT_NO_THROW(plan_of(model, row));
}

TEST(Plan, ATiedHeadBorrowsTheEmbeddingsGroupWhichIsCompleteAfterTheEmbedding) {
  const Plan plan = plan_of(small_request("llama3_2"));
  EXPECT_EQ(plan.units.back().groups, (std::vector<size_t>{4, 0}));
  EXPECT_EQ(plan.groups[0].reduce_after, 0u);
  ASSERT_EQ(plan.groups[4].parameters.size(), 1u);
  EXPECT_EQ(plan.groups[4].parameters[0].spec.name, "norm.weight");
}

TEST(Plan, ATiedModelWithoutNormWeightsHasAHeadWithoutAGroupOfItsOwn) {
  ModelRequest request = small_request("llama3_2");
  request.model.norm_type = NormType::np_layernorm;
  const Plan plan = plan_of(request);
  EXPECT_EQ(plan.groups.size(), 4u);
  EXPECT_EQ(plan.units.back().groups, std::vector<size_t>{0});
}

TEST(Plan, ParametersOfAGroupLieOneAfterTheOtherInTheOrderOfFusedProducts) {
  const WeightGroupPlan group = plan_of(small_request()).groups[1];
  int64_t numel = 0;
  std::vector<std::string> suffixes;
  for (const ParameterPlan& parameter : group.parameters) {
    numel += parameter.spec.numel();
    suffixes.push_back(parameter.spec.name.substr(std::string("layers.0.").size()));
  }
  EXPECT_EQ(group.numel, numel);
  EXPECT_EQ(suffixes,
            (std::vector<std::string>{"attention.wq.weight", "attention.wk.weight", "attention.wv.weight",
                                      "attention.wo.weight", "feed_forward.w1.weight", "feed_forward.w3.weight",
                                      "feed_forward.w2.weight", "attention_norm.weight", "ffn_norm.weight"}));
}

TEST(Plan, EverySecondBlockIsCheckpointedUnderSelectiveTwoStartingWithTheSecond) {
  PlanRequest request = small_plan();
  request.recompute = selection(RecomputeSelection::Mode::selective_layers, 2);
  const Plan plan = plan_of(small_request(), request);
  std::vector<bool> checkpointed;
  for (const UnitPlan& unit : plan.units) checkpointed.push_back(unit.policy.checkpointed());
  EXPECT_EQ(checkpointed, (std::vector<bool>{false, false, true, false, false}));
  request.recompute.every = 0;
  EXPECT_TRUE(plan_of(small_request(), request).units[1].policy.checkpointed()) << "0 means every block";
}

/// Reduce-scatters of hidden states in a step, with tensor parallelism over two ranks.
int64_t scatters(RecomputeSelection::Mode mode) {
  PlanRequest request = small_plan();
  request.recompute = selection(mode);
  request.place = {DeviceMesh({1, 1, 1, 1, 2}, 2), 0};
  const Plan plan = plan_of(small_request(), request);
  return planned_traffic(plan, communicator_names::kTensor)[static_cast<size_t>(Collective::reduce_scatter)].calls;
}

TEST(Plan, PerOperationRecomputeRepeatsNoReduceScatterAndFullRecomputeOnePerBlock) {
  using Mode = RecomputeSelection::Mode;
  EXPECT_EQ(scatters(Mode::selective_operations), scatters(Mode::none));
  EXPECT_EQ(scatters(Mode::full), scatters(Mode::none) + 3) << "that of wo; w2's result is not needed again";
}

TEST(Plan, PerOperationRecomputeKeepsWhatWoScatteredOnlyWhereSeveralRanksShareIt) {
  PlanRequest request = small_plan();
  request.recompute = selection(RecomputeSelection::Mode::selective_operations);
  const UnitPlan alone = plan_of(small_request(), request).units[1];
  EXPECT_EQ(alone.policy.of(ResultKind::linear, 3), Keep::recompute);
  request.place = {DeviceMesh({1, 1, 1, 1, 2}, 2), 0};
  const UnitPlan shared = plan_of(small_request(), request).units[1];
  EXPECT_EQ(shared.policy.of(ResultKind::linear, 3), Keep::keep);
  const int64_t hidden_bytes = 26 * 24 * 4;
  EXPECT_EQ(2 * shared.saved_bytes, alone.saved_bytes + hidden_bytes) << "half of each, and half of wo's result";
}

TEST(Plan, AReplayAddsTheFloat8FormOfAnInputThatAnotherOperationSavesInBf16) {
  UnitTrace trace({.length = 32, .element_size = 2, .float8 = Float8Recipe::tensorwise, .float8_parameters = {"wo"}});
  const TracedTensor x = trace.tensor(32 * 48 * 2);
  const TracedTensor y = trace_linear(trace, x, 48, {{"wo", 64}}, 3, LinearSplit::output, /*reads_alone=*/false)[0];
  trace.set_ends({x}, {y});
  const RecomputePolicy none = RecomputePolicy::none(), full = RecomputePolicy::full();
  const RecomputePolicy unused = RecomputePolicy::full().set(ResultKind::linear, 3, Keep::placeholder);
  for (const RecomputePolicy& policy : {none, full, unused}) EXPECT_EQ(trace.saved_bytes(policy), 32 * 48 * 2);
  EXPECT_EQ(trace.backward_peak(full), trace.backward_peak(none) + 32 * 48);
  EXPECT_EQ(trace.backward_peak(unused), trace.backward_peak(none));
  // Deferred weight gradients read the one form or the other.
  EXPECT_EQ(trace.deferred_bytes(none), 32 * 48 * 2 + 32 * 64 * 2);
  EXPECT_EQ(trace.deferred_bytes(full), 32 * 48 + 32 * 64 * 2);
  EXPECT_EQ(trace.deferred_bytes(unused), trace.deferred_bytes(none));
}

TEST(Plan, OffloadedMomentsOfThreeParametersAreOnTheDevice) {
  PlanRequest request = small_plan();
  request.optimizer.offload = true;
  const Plan plan = plan_of(small_request(), request);
  std::vector<int64_t> numels;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) numels.push_back(parameter.shard.numel());
  }
  std::sort(numels.rbegin(), numels.rend());
  EXPECT_EQ(memory_of(plan).at("optimizer state on the device"), (numels[0] + numels[1] + numels[2]) * 2 * 4);
}

TEST(Plan, MemoryIsTheSumOfItsPurposesAndFollowsTheDtypes) {
  PlanRequest request = small_plan();
  request.training.mixed_precision_param = ElementType::bfloat16;
  const Plan plan = plan_of(small_request(), request);
  const auto memory = memory_of(plan);
  const int64_t n = plan.parameter_count;
  EXPECT_EQ(memory.at("parameters"), 4 * n);
  EXPECT_EQ(memory.at("parameters, compute copy"), 2 * n);
  EXPECT_EQ(memory.at("gradients"), 4 * n);
  EXPECT_EQ(memory.at("optimizer state"), 8 * n);
  int64_t kept = 0, total = 0;
  for (const UnitPlan& unit : plan.units) kept += unit.is_models_last ? 0 : unit.saved_bytes;
  for (const MemoryPurpose& purpose : plan.memory) total += purpose.bytes;
  EXPECT_EQ(plan.peak, "BACKWARD layers.2 microbatch 0");
  EXPECT_EQ(memory.at("activations kept"), kept) << "the head's are gone";
  EXPECT_EQ(memory.at("the unit that runs"), plan.units[3].backward_peak - plan.units[3].saved_bytes);
  EXPECT_EQ(plan.predicted_bytes(), total);
  EXPECT_EQ(memory_of(plan_of(small_request())).count("parameters, compute copy"), 0u);
}

TEST(Plan, GradientsThatTravelNarrowedTakeTurnsInTwoMessages) {
  PlanRequest request = small_plan();
  request.training.mixed_precision_reduce = ElementType::bfloat16;
  EXPECT_TRUE(plan_of(small_request(), request).message_slots.empty()) << "one process sends nothing";
  for (const int64_t accumulation : {1, 4}) {
    request.accumulation = accumulation;
    request.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
    const Plan plan = plan_of(small_request(), request);
    ASSERT_EQ(plan.message_slots.size(), 2u);
    for (size_t g = 0; g + 1 < plan.groups.size(); ++g) {
      EXPECT_NE(plan.groups[g].message_slot, plan.groups[g + 1].message_slot) << "a reduction begins in the other one";
      EXPECT_GE(plan.message_slots[plan.groups[g].message_slot],
                2 * (plan.groups[g].numel + plan.groups[g].shard_numel));
    }
    EXPECT_EQ(memory_of(plan).at("gradients, narrowed"), plan.message_slots[0] + plan.message_slots[1]);
  }
}

TEST(Plan, SteppingInBackwardHoldsTheLargestGroupsGradientOnly) {
  PlanRequest request = small_plan();
  request.optimizer.early_step_in_backward = true;
  const Plan plan = plan_of(small_request(), request);
  int64_t largest = 0;
  for (const WeightGroupPlan& group : plan.groups) largest = std::max(largest, group.numel);
  EXPECT_EQ(memory_of(plan).at("gradients"), 4 * largest);
}

/// A plan in bf16 with gradients in bf16, as far as `change` leaves that possible.
Plan with_narrow_gradients(const std::function<void(PlanRequest&)>& change = {}, const std::string& family = "llama3") {
  PlanRequest request = plan_in(ElementType::bfloat16);
  request.training.gradient_dtype = ElementType::bfloat16;
  if (change) change(request);
  return plan_of(small_request(family), request);
}

std::vector<std::string> narrow_gradients(const Plan& plan) {
  std::vector<std::string> names;
  for (const WeightGroupPlan& group : plan.groups) {
    if (group.gradient == ElementType::bfloat16) names.push_back(group.name);
  }
  return names;
}

TEST(Plan, GradientsInBf16AreThoseOfBlocksThatComputeInBf16) {
  const std::vector<std::string> blocks{"layers.0", "layers.1", "layers.2"};
  EXPECT_EQ(narrow_gradients(with_narrow_gradients()), blocks);
  EXPECT_EQ(narrow_gradients(with_narrow_gradients({}, "llama3_2")), blocks) << "the embedding is the head's, too";
  EXPECT_EQ(
      narrow_gradients(with_narrow_gradients([](PlanRequest& request) { request.training.keep_fp32 = {"layers.1"}; })),
      (std::vector<std::string>{"layers.0", "layers.2"}));
}

TEST(Plan, GradientsToWhichSomethingIsAddedStayInFp32) {
  const auto stay = [](const std::function<void(PlanRequest&)>& change) {
    return narrow_gradients(with_narrow_gradients(change)).empty();
  };
  EXPECT_TRUE(stay([](PlanRequest& request) { request.training.mixed_precision_param = ElementType::float32; }));
  EXPECT_TRUE(stay([](PlanRequest& request) { request.accumulation = 2; }));
  EXPECT_TRUE(stay([](PlanRequest& request) { request.training.enable_cpu_offload = true; }));
  EXPECT_TRUE(stay([](PlanRequest& request) { request.groups_of_one = true; }));
  for (const ParallelDegrees& degrees : {ParallelDegrees{.dp_replicate = 2}, {.dp_shard = 2}, {.tp = 2}}) {
    EXPECT_TRUE(stay([&](PlanRequest& request) { request.place = {DeviceMesh(degrees, 2), 0}; }));
  }
}

TEST(Plan, GradientsInBf16TakeHalfTheBytes) {
  int64_t all = 0, of_blocks = 0, largest = 0;
  const Plan plan = with_narrow_gradients();
  for (const WeightGroupPlan& group : plan.groups) {
    const bool is_block = group.name.starts_with("layers.");
    all += group.numel;
    of_blocks += is_block ? group.numel : 0;
    largest = std::max(largest, (is_block ? 2 : 4) * group.numel);
  }
  EXPECT_EQ(memory_of(plan).at("gradients"), 4 * all - 2 * of_blocks);
  const auto early = [](PlanRequest& request) { request.optimizer.early_step_in_backward = true; };
  EXPECT_EQ(memory_of(with_narrow_gradients(early)).at("gradients"), largest);
}

/// Gathers of a step.
int64_t gathers_of(const Plan& plan) {
  for (const CommunicatorTraffic& communicator : plan.traffic) {
    if (communicator.communicator == communicator_names::kGather)
      return communicator.table[static_cast<size_t>(Collective::all_gather)].calls;
  }
  return 0;
}

TEST(Plan, ReshardingDecidesWhoSharesASlotAndHowOftenWeightsAreGathered) {
  PlanRequest request = small_plan();
  request.accumulation = 2;
  request.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
  std::map<ReshardPolicy, Plan> plans;
  for (ReshardPolicy policy : {ReshardPolicy::standard, ReshardPolicy::always, ReshardPolicy::never}) {
    request.parallelism.fsdp_reshard_after_forward = policy;
    plans[policy] = plan_of(small_request(), request);
  }
  const Plan& standard = plans[ReshardPolicy::standard];
  const Plan& always = plans[ReshardPolicy::always];
  EXPECT_EQ(standard.weight_slots.size(), 2u + 2u);
  EXPECT_EQ(always.weight_slots.size(), 2u + 1u);
  EXPECT_EQ(plans[ReshardPolicy::never].weight_slots.size(), 5u);
  const int64_t smaller = std::min(standard.groups.front().numel, standard.groups.back().numel) * 4;
  EXPECT_EQ(memory_of(always)["gathered weights"], memory_of(standard)["gathered weights"] - smaller);
  EXPECT_EQ(gathers_of(always), gathers_of(standard) + 2) << "embedding and head again in the second microbatch";
  EXPECT_EQ(gathers_of(plans[ReshardPolicy::never]), 5);
}

TEST(Plan, EmbeddingAndHeadThatAreOneMatrixShareNoSlotWithEachOther) {
  PlanRequest request = small_plan();
  request.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
  request.parallelism.fsdp_reshard_after_forward = ReshardPolicy::always;
  const Plan always = plan_of(small_request("llama3_2"), request);
  request.parallelism.fsdp_reshard_after_forward = ReshardPolicy::standard;
  EXPECT_EQ(always.weight_slots, plan_of(small_request("llama3_2"), request).weight_slots);
}

TEST(Plan, OfTheLargestModelNeedsNoTensor) {
  ModelRequest request;
  request.model.name = "llama3_1";
  request.model.flavor = "405B";
  request.sequence_length = 8192;
  PlanRequest full = small_plan();
  full.recompute = selection(RecomputeSelection::Mode::full);
  const Plan plan = plan_of(request, full);
  EXPECT_EQ(plan.parameter_count, 405'853'388'800);
  EXPECT_EQ(plan.flops_per_token, 2'625'449'459'712);
  EXPECT_EQ(plan.units.size(), 128u);
  EXPECT_EQ(plan.units[5].saved_bytes, int64_t{2} * 8192 * 16384 * 4);
}

TensorLayout layout(int64_t replicas, int64_t tensor_ranks, std::optional<int64_t> tensor_dimension, int64_t shards) {
  return TensorLayout(
      {8, 8}, {{"dp_replicate", replicas, std::nullopt}, {"tp", tensor_ranks, tensor_dimension}, {"fsdp", shards, 0}});
}

TEST(LayoutWords, NameTheAxesOfSeveralRanksInTheOrderInWhichTheyCut) {
  EXPECT_EQ(layout_words(layout(1, 1, std::nullopt, 1)), "whole");
  EXPECT_EQ(layout_words(layout(1, 1, std::nullopt, 4)), "fsdp Shard(0)");
  EXPECT_EQ(layout_words(layout(2, 2, 1, 2)), "dp_replicate Replicate, tp Shard(1), fsdp Shard(0)");
  EXPECT_EQ(layout_words(layout(1, 2, std::nullopt, 2)), "tp Replicate, fsdp Shard(0)");
}

TEST(LayoutWords, ACutWithinThePiecesOfAnotherIsStrided) {
  EXPECT_EQ(layout_words(layout(1, 2, 0, 2)), "tp Shard(0), fsdp StridedShard(0)");
}

}  // namespace

}  // namespace titan
