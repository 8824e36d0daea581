// training.keep_fp32: the dtypes in which every unit's weights are gathered, its hidden states and their gradients are,
// and its weight gradients are reduced, when others compute in bf16.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "support/model.h"
#include "support/planned_traffic.h"
#include "titan/distributed/communicator.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

using Types = std::vector<at::ScalarType>;

/// Rank 0 of two, alone: notes the dtype of every message.
class NotingCommunicator : public Communicator {
 public:
  explicit NotingCommunicator(std::string name)
      : Communicator(std::move(name), 0, 2), inner_(make_fake_communicator("inner", 0, 2)) {}
  std::string_view transport() const override { return "nothing"; }
  void set_timeout(std::chrono::milliseconds) override {}
  Types sent;

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    note(inputs);
    return inner_->all_gather(std::move(outputs), std::move(inputs));
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    note(inputs);
    return inner_->reduce_scatter(std::move(outputs), std::move(inputs));
  }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    return inner_->transfer(std::move(receives), std::move(sends));
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    note(tensors);
    return inner_->all_reduce(std::move(tensors), reduction);
  }

 private:
  void note(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor.scalar_type(), tensors[0].scalar_type());
    sent.push_back(tensors[0].scalar_type());
  }

  std::unique_ptr<Communicator> inner_;
};

/// What a unit saw in its forward and its backward.
struct Seen {
  Types input, output, weights, output_gradient, input_gradient;
};

class NotingRunner : public UnitRunner {
 public:
  NotingRunner(const Model* model, const Plan* plan, std::map<std::string, Seen>* seen)
      : model_(model), plan_(plan), seen_(seen) {}

  HiddenStates forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) override {
    Seen& seen = (*seen_)[unit.name()];
    seen.input = types_of(input);
    for (const WeightGroupPlan& group : plan_->groups) {
      if (group.name != unit.name()) continue;
      for (const ParameterPlan& planned : group.parameters) {
        seen.weights.push_back(model_->parameter(planned.spec.name).weight().scalar_type());
      }
    }
    HiddenStates output = inner_.forward(unit, input, batch, state);
    seen.output = types_of(output);
    return output;
  }
  HiddenStates backward(Unit& unit, const HiddenStates& gradients, const BatchContext& batch,
                        UnitState& state) override {
    Seen& seen = (*seen_)[unit.name()];
    seen.output_gradient = types_of(gradients);
    HiddenStates result = inner_.backward(unit, gradients, batch, state);
    seen.input_gradient = types_of(result);
    return result;
  }

 private:
  static Types types_of(const HiddenStates& hidden) {
    Types types;
    for (const at::Tensor& tensor : hidden) {
      if (tensor.defined()) types.push_back(tensor.scalar_type());
    }
    return types;
  }

  const Model* model_;
  const Plan* plan_;
  std::map<std::string, Seen>* seen_;
  EagerRunner inner_;
};

/// A small model in bf16, reduced in bf16, of which rank 0 of two runs one step; some units stay in fp32.
struct Kept {
  explicit Kept(std::vector<std::string> units, const ModelRequest& request = small_request())
      : gather(std::make_shared<NotingCommunicator>("fsdp_gather")),
        scatter(std::make_shared<NotingCommunicator>("fsdp_scatter")) {
    const ModelFamily& family = *find_model_family(request.model.name);
    PlanRequest plan_request = small_plan();
    plan_request.sequence_length = request.sequence_length;
    plan_request.training.mixed_precision_param = plan_request.training.mixed_precision_reduce = ElementType::bfloat16;
    plan_request.training.keep_fp32 = std::move(units);
    plan_request.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
    const ModelDescription description = describe_model(request);
    plan = make_plan(description, plan_request);
    model = family.build(request, {});
    model->prepare(at::kCPU);
    const auto host_offload = no_offload();
    const auto slots = std::make_shared<SlotPool>(plan, host_offload->device());
    MeshCommunicators communicators;
    communicators.gather = gather;
    communicators.scatter = scatter;
    WeightStores weights;
    for (const WeightGroupPlan& group : plan.groups) {
      std::vector<Parameter*> members;
      for (const ParameterPlan& planned : group.parameters) members.push_back(&model->parameter(planned.spec.name));
      weights.push_back(
          std::make_unique<WeightStore>(group, members, plan.request, host_offload, slots, communicators));
    }
    for (const auto& parameter : model->parameter_handles()) initialise(*parameter, parameter->shard_box(), 11);
    executor = std::make_unique<Executor>(plan, model->chain(), std::move(weights),
                                          std::make_unique<NotingRunner>(model.get(), &plan, &seen));
    batch.tokens = integers({2, request.sequence_length}, description.vocabulary, 5);
    batch.labels = integers({2, request.sequence_length}, description.vocabulary, 6);
    batch.loss_scale = 1.0 / 26;
  }

  void run() {
    loss = forward(*executor, batch, 0);
    backward(*executor, batch, 0, /*is_last=*/true);
  }

  std::shared_ptr<NotingCommunicator> gather, scatter;
  Plan plan;
  std::unique_ptr<Model> model;
  std::unique_ptr<Executor> executor;
  std::map<std::string, Seen> seen;
  BatchContext batch;
  at::Tensor loss;
};

constexpr at::ScalarType kWide = at::kFloat;
constexpr at::ScalarType kNarrow = at::kBFloat16;

TEST(KeepFp32, ANamedUnitsWeightsTravelAndMultiplyInFp32AndOthersDoNot) {
  Kept kept({"layers.1"});
  kept.run();
  // Gathers: five groups forward, of which two blocks' slots hold others when backward comes.
  ASSERT_EQ(kept.gather->sent.size(), 6u);
  EXPECT_EQ(kept.gather->sent, (Types{kNarrow, kNarrow, kWide, kNarrow, kNarrow, kNarrow}));
  // Reductions: from the head down to the embedding.
  EXPECT_EQ(kept.scatter->sent, (Types{kNarrow, kNarrow, kWide, kNarrow, kNarrow}));
  for (const auto& [unit, seen] : kept.seen) {
    const at::ScalarType type = unit == "layers.1" ? kWide : kNarrow;
    for (at::ScalarType weight : seen.weights) EXPECT_EQ(weight, type) << unit;
  }
}

TEST(KeepFp32, HiddenStatesAndTheirGradientsAreInTheDtypeOfTheUnit) {
  Kept kept({"layers.1"});
  kept.run();
  EXPECT_EQ(kept.seen["layers.0"].output, Types{kNarrow});
  EXPECT_EQ(kept.seen["layers.1"].input, Types{kWide});
  EXPECT_EQ(kept.seen["layers.1"].output, Types{kWide});
  EXPECT_EQ(kept.seen["layers.2"].input, Types{kNarrow});
  EXPECT_EQ(kept.seen["layers.2"].input_gradient, Types{kNarrow});
  EXPECT_EQ(kept.seen["layers.1"].output_gradient, Types{kWide});
  EXPECT_EQ(kept.seen["layers.1"].input_gradient, Types{kWide});
  EXPECT_EQ(kept.seen["layers.0"].output_gradient, Types{kNarrow});
}

TEST(KeepFp32, MessagesAreAsLargeAsThePlanSays) {
  for (const std::vector<std::string>& units : {std::vector<std::string>{}, {"layers.1"}, {"tok_embeddings", "head"}}) {
    Kept kept(units);
    kept.run();
    EXPECT_EQ(kept.gather->traffic(), planned_traffic(kept.plan, "fsdp_gather")) << units.size();
    EXPECT_EQ(kept.scatter->traffic(), planned_traffic(kept.plan, "fsdp_scatter")) << units.size();
  }
}

TEST(KeepFp32, MastersAndTheirGradientsAreInFp32WhateverTravelled) {
  Kept kept({"layers.1"});
  kept.run();
  for (const auto& parameter : kept.model->parameter_handles()) {
    EXPECT_EQ(parameter->master.scalar_type(), kWide) << parameter->name();
    EXPECT_EQ(parameter->gradient_shard.scalar_type(), kWide) << parameter->name();
  }
}

TEST(KeepFp32, AHeadInFp32GivesFp32LogitsAndTheLossOfExactlyThose) {
  Kept narrow({});
  EXPECT_EQ(narrow.executor->infer(narrow.batch, UnitMode::logits).scalar_type(), kNarrow);
  Kept kept({"head"});
  const at::Tensor logits = kept.executor->infer(kept.batch, UnitMode::logits);
  EXPECT_EQ(logits.scalar_type(), kWide);
  kept.run();
  EXPECT_EQ(kept.seen["head"].input, Types{kWide});
  EXPECT_EQ(kept.seen["head"].output, Types{at::kDouble});
  EXPECT_EQ(kept.seen["head"].output_gradient, Types{at::kDouble});
  EXPECT_EQ(kept.seen["layers.2"].output_gradient, Types{kNarrow});
  const at::Tensor likelihood = logits.to(at::kDouble).log_softmax(-1).gather(-1, kept.batch.labels.unsqueeze(-1));
  const double expected = -likelihood.sum().item<double>() / 26;
  EXPECT_NEAR(kept.loss.item<double>(), expected, 1e-6 * expected);
}

TEST(KeepFp32, ATiedMatrixIsInFp32ForBothItsUnitsWhicheverIsNamed) {
  for (const char* unit : {"tok_embeddings", "head"}) {
    Kept kept({unit}, small_request("llama3_2"));
    kept.run();
    EXPECT_EQ(kept.plan.units.front().compute, ElementType::float32) << unit;
    EXPECT_EQ(kept.plan.units.back().compute, ElementType::float32) << unit;
    EXPECT_EQ(kept.seen["tok_embeddings"].weights, Types{kWide}) << unit;
    EXPECT_EQ(kept.seen["head"].weights, Types{kWide}) << unit;
    EXPECT_EQ(kept.seen["layers.0"].weights.front(), kNarrow) << unit;
  }
}

}  // namespace
}  // namespace titan
