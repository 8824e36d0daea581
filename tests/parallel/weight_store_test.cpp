// Weights that stay on their rank, and that no unit needs a weight at a time when it is not there.
#include "titan/parallel/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>

#include "support/model.h"
#include "support/selections.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Rank 0 of two, where rank 1 holds the same rows and has no gradient. A collective reads its inputs no sooner than it
/// is waited for; until then its outputs are NaN.
class LateCommunicator : public Communicator {
 public:
  explicit LateCommunicator(std::string name) : Communicator(std::move(name), 0, 2) {}
  std::string_view transport() const override { return "nothing"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  struct Late : PendingCollective {
    explicit Late(std::function<void()> finish) : finish(std::move(finish)) {}
    void wait() override {
      if (finish) finish();
      finish = nullptr;
    }
    std::function<void()> finish;
  };

  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    for (const at::Tensor& output : outputs) output.fill_(NAN);
    return std::make_unique<Late>([outputs, inputs] {
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(at::cat({inputs[i], inputs[i]}));
    });
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    for (const at::Tensor& output : outputs) output.fill_(NAN);
    return std::make_unique<Late>([outputs, inputs] {
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i].narrow(0, 0, outputs[i].size(0)));
    });
  }
  Pending start_all_reduce(Tensors, Reduction) override { throw std::logic_error("nothing is all-reduced"); }
  Pending start_transfer(std::vector<Message>, std::vector<Message>) override {
    throw std::logic_error("nothing is sent");
  }
};

/// One of two ranks that shard a model. What is not there yet is NaN: weights until WAIT_UNSHARD, gradients until they
/// are written, sums until WAIT_REDUCE.
struct PoisonedModel {
  PoisonedModel(const ModelRequest& request, PlanRequest plan)
      : small(request, placed(std::move(plan)), {},
              [this](const Plan& made, size_t group, std::vector<Parameter*> members) {
                if (!slots) slots = std::make_shared<SlotPool>(made, host_offload->device());
                MeshCommunicators communicators;
                communicators.gather = gather;
                communicators.scatter = scatter;
                return std::make_unique<WeightStore>(made.groups[group], std::move(members), made.request, host_offload,
                                                     slots, communicators);
              }) {}

  static PlanRequest placed(PlanRequest plan) {
    plan.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
    return plan;
  }

  /// Poisons gradients when they are opened, and has them complete when they are closed.
  Executor::Observer observer() {
    return [this](const Action& action) {
      if (action.group < 0) return;
      const WeightGroupPlan& group = small.plan.groups[static_cast<size_t>(action.group)];
      if (action.kind == ActionKind::open_gradient) {
        slots->gradients.at(group.gradient_slot).memory.view(at::kFloat).fill_(NAN);
      }
      if (action.kind != ActionKind::close_gradient) return;
      for (const ParameterPlan& planned : group.parameters) {
        EXPECT_TRUE(small.model->parameter(planned.spec.name).gradient_written()) << planned.spec.name;
      }
    };
  }

  std::shared_ptr<HostOffload> host_offload = no_offload();
  std::shared_ptr<LateCommunicator> gather = std::make_shared<LateCommunicator>("fsdp_gather");
  std::shared_ptr<LateCommunicator> scatter = std::make_shared<LateCommunicator>("fsdp_scatter");
  std::shared_ptr<SlotPool> slots;
  SmallModel small;
};

TEST(WeightStore, WeightsThatAreThereAtNoOtherTimeGiveTheBitsOfThoseThatStay) {
  for (const char* family : {"llama3", "llama3_2"}) {
    for (const ReshardPolicy policy : {ReshardPolicy::standard, ReshardPolicy::always, ReshardPolicy::never}) {
      for (const NamedSelection& named : all_selections()) {
        SCOPED_TRACE(fmt::format("{}, {}", family, named.name));
        PlanRequest plan = small_plan();
        plan.recompute = named.selection;
        plan.parallelism.fsdp_reshard_after_forward = policy;
        plan.accumulation = 2;
        PoisonedModel poisoned(small_request(family), plan);
        SmallModel resident(small_request(family), plan);
        for (const auto& parameter : resident.model->parameter_handles()) {
          const at::Tensor& shard = poisoned.small.model->parameter(parameter->name()).master;
          parameter->master.copy_(at::cat({shard, shard}).narrow(0, 0, parameter->master.size(0)));
        }
        const Executor::Observer poison = poisoned.observer();
        forward(*poisoned.small.executor, resident.batch(1), 0, poison);
        backward(*poisoned.small.executor, resident.batch(1), 0, /*is_last=*/false, poison);
        forward(*resident.executor, resident.batch(1));
        backward(*resident.executor, resident.batch(1), 0, /*is_last=*/false);
        EXPECT_TRUE(same_bits(poisoned.small.run(resident.batch(2), poison), resident.run(resident.batch(2))));
        std::map<std::string, at::Tensor> expected = resident.gradients();
        for (auto& [name, gradient] : expected) {
          gradient = gradient.narrow(0, 0, poisoned.small.model->parameter(name).master.size(0));
        }
        expect_same_gradients(poisoned.small.gradients(), expected);
      }
    }
  }
}

TEST(WeightStoreResident, CopiesAreMadeOncePerChangeOfTheMasters) {
  PlanRequest plan = small_plan();
  plan.training.mixed_precision_param = ElementType::bfloat16;
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

TEST(WeightStoreResident, CopiesThatTheirWriterMadeAreNotMadeAgainButTheNextChangeMakesThem) {
  PlanRequest plan = small_plan();
  plan.training.mixed_precision_param = ElementType::bfloat16;
  SmallModel small(small_request(), plan);
  Parameter& output = small.model->parameter("output.weight");
  auto first_weight = [&] {
    small.executor->infer(small.batch(), UnitMode::evaluate);
    return output.weight()[0][0].item<float>();
  };
  first_weight();
  for (const auto& parameter : small.model->parameter_handles()) parameter->compute_copy_written = true;
  output.master.fill_(2.0);
  output.compute_copy.fill_(3.0);  // what a copy of the master would not hold
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 3.0f);
  EXPECT_FALSE(output.compute_copy_written) << "valid for one refresh";
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 2.0f);

  output.master.fill_(4.0);
  output.compute_copy_written = true;  // but its neighbours in the group were not written
  small.executor->weights_changed();
  EXPECT_EQ(first_weight(), 4.0f);
}

TEST(WeightStoreResident, CopiesThatWereStaleBeforeAWriterMadeSomeAreMadeAgain) {
  PlanRequest plan = small_plan();
  plan.training.mixed_precision_param = ElementType::bfloat16;
  SmallModel small(small_request(), plan);
  Parameter& output = small.model->parameter("output.weight");
  for (const auto& parameter : small.model->parameter_handles()) parameter->compute_copy_written = true;
  output.master.fill_(5.0);
  small.executor->weights_changed();  // no copy was ever made
  small.executor->infer(small.batch(), UnitMode::evaluate);
  EXPECT_EQ(output.weight()[0][0].item<float>(), 5.0f);
}

TEST(WeightStoreResident, TransientGradientsLiveFromTheirFirstUseToTheEndOfTheStep) {
  auto transient = [](const Plan& plan, size_t group, std::vector<Parameter*> members) {
    PlanRequest request = plan.request;
    request.optimizer.early_step_in_backward = true;
    return std::make_unique<WeightStore>(plan.groups[group], std::move(members), request, no_offload());
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

TEST(WeightStoreResident, SteppingInBackwardFreesGradientsInBf16) {
  PlanRequest transient = plan_in(ElementType::bfloat16);
  transient.training.gradient_dtype = ElementType::bfloat16;
  transient.optimizer.early_step_in_backward = true;
  SmallModel small(small_request(), transient);
  const WeightGroupPlan& block = small.plan.groups[2];
  StepWork none;
  for (int step = 0; step < 2; ++step) {
    execute(*small.executor, {.kind = ActionKind::open_gradient, .group = 2}, none);
    EXPECT_EQ(small.executor->gradient_bytes(), 2 * block.numel);
    EXPECT_EQ(small.model->parameter(block.parameters[0].spec.name).gradient().scalar_type(), at::kBFloat16);
    execute(*small.executor, {.kind = ActionKind::close_gradient, .group = 2}, none);
    EXPECT_EQ(small.model->parameter(block.parameters[0].spec.name).gradient_shard.scalar_type(), at::kBFloat16);
    execute(*small.executor, {.kind = ActionKind::zero_gradient, .group = 2}, none);
    EXPECT_EQ(small.executor->gradient_bytes(), 0);
  }
}

TEST(WeightStoreResident, AGroupThatNoMicrobatchTouchedReducesToZero) {
  ParameterSpec spec{"unused", {3, 2}, {}};
  Parameter parameter(spec);
  const Box box = parameter.shard_box();
  WeightGroupPlan group;
  group.name = "unused";
  group.parameters = {{spec, parameter.layout(), box, box, 3}};
  group.numel = group.shard_numel = 6;
  WeightStore weights(group, {&parameter}, {}, no_offload());
  weights.open_gradient();
  parameter.gradient().fill_(NAN);
  EXPECT_FALSE(parameter.gradient_shard.defined());
  weights.close_gradient();
  EXPECT_TRUE(same_bits(parameter.gradient_shard, at::zeros({3, 2})));
}

}  // namespace
}  // namespace titan
