// A small Llama with everything it needs to run steps: plan, resident weights, executor; and batches for it.
// For tests of what the executor does to a whole model; sizes are odd where the model lets them be.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "passes.h"
#include "small_plan.h"
#include "tensors.h"
#include "titan/model/initialise.h"
#include "titan/model/model.h"
#include "titan/parallel/executor.h"
#include "titan/parallel/weight_store.h"
#include "titan/plan/plan.h"
#include "titan/stream/batch_stream.h"

namespace titan {

/// Shards live where units run.
inline std::shared_ptr<HostOffload> no_offload() {
  const auto arena = std::make_shared<MemoryArena>(at::kCPU);
  return std::make_shared<HostOffload>(arena, arena);
}

struct SmallModel {
  /// The store of the plan's weight group of that number.
  using MakeWeights = std::function<std::unique_ptr<WeightStore>(const Plan&, size_t, std::vector<Parameter*>)>;
  using MakeRunner = std::function<std::unique_ptr<UnitRunner>(const SmallModel&)>;

  explicit SmallModel(const ModelRequest& model_request, PlanRequest plan_request = small_plan(),
                      ExecutorOptions options = {}, const MakeWeights& make_weights = resident,
                      std::shared_ptr<const LinearProducts> products = std::make_shared<DenseProducts>(),
                      const MakeRunner& make_runner = eager)
      : request(model_request), family(*find_model_family(request.model.name)) {
    plan_request.sequence_length = request.sequence_length;
    description = describe_model(request);
    model = family.build(request, {std::move(products), {.chunks = plan_request.training.loss_chunks}});
    model->prepare(at::kCPU);
    plan = make_plan(description, plan_request);
    WeightStores weights;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      std::vector<Parameter*> members;
      for (const ParameterPlan& planned : plan.groups[g].parameters) {
        members.push_back(&model->parameter(planned.spec.name));
      }
      weights.push_back(make_weights(plan, g, std::move(members)));
    }
    for (const auto& parameter : model->parameter_handles()) {
      initialise(*parameter, parameter->shard_box(), /*seed=*/11);
      // Norm weights of exactly one would hide a forgotten weight.
      if (parameter->spec().shape.size() == 1) parameter->master.add_(normal(parameter->master.sizes(), 77).mul_(0.1));
    }
    executor = std::make_unique<Executor>(plan, model->chain(), std::move(weights), make_runner(*this), options);
  }

  static std::unique_ptr<UnitRunner> eager(const SmallModel&) { return std::make_unique<EagerRunner>(); }

  static std::unique_ptr<WeightStore> resident(const Plan& plan, size_t group, std::vector<Parameter*> members) {
    return std::make_unique<WeightStore>(plan.groups[group], std::move(members), plan.request, no_offload());
  }

  /// Random tokens and labels, some ignored; `loss_scale` is one over the valid ones.
  BatchContext batch(uint64_t seed = 5) const {
    BatchContext context;
    context.tokens = integers({plan.request.samples, request.sequence_length}, description.vocabulary, seed);
    context.labels = integers({plan.request.samples, request.sequence_length}, description.vocabulary, seed + 1);
    context.labels.select(1, 3).fill_(kIgnoredLabel);
    context.loss_scale = 1.0 / context.labels.ne(kIgnoredLabel).sum().item<double>();
    return context;
  }

  /// One whole step of one microbatch: its loss. Gradients are in the parameters' shards.
  at::Tensor run(const BatchContext& batch, const Executor::Observer& observer = {}) {
    StepWork none;
    return executor->run(executor->program(ProgramKind::last_pass), {&batch, 1}, none, observer);
  }

  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> result;
    for (const auto& parameter : model->parameter_handles())
      result[parameter->name()] = parameter->gradient_shard.clone();
    return result;
  }

  ModelRequest request;
  const ModelFamily& family;
  ModelDescription description;
  Plan plan;
  std::unique_ptr<Model> model;
  std::unique_ptr<Executor> executor;
};

inline void expect_same_gradients(const std::map<std::string, at::Tensor>& actual,
                                  const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, gradient] : expected) EXPECT_TRUE(same_bits(actual.at(name), gradient)) << name;
}

}  // namespace titan
