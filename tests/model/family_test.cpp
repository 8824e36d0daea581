// Another decoder than Llama, in one file: what a family must offer is enough for plan, weight store and executor.
#include <gtest/gtest.h>

#include <set>

#include "support/operation.h"
#include "support/passes.h"
#include "support/small_plan.h"
#include "titan/model/initialise.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/embedding.h"
#include "titan/ops/norm.h"
#include "titan/parallel/executor.h"

namespace titan {
namespace {

constexpr int64_t kDim = 10;
constexpr int64_t kWords = 17;

class ToyEmbedding : public Unit {
 public:
  explicit ToyEmbedding(Parameter& weight) : Unit("words", {&weight}), weight_(weight) {
    anchor_ = at::empty({0}).set_requires_grad(true);
  }
  HiddenStates forward(const HiddenStates&, const BatchContext& batch, UnitContext& context) override {
    return {embedding(anchor_, batch.tokens, weight_, nullptr, context)};
  }

 private:
  Parameter& weight_;
  at::Tensor anchor_;
};

/// x + mix·x: a linear block with a residual stream.
class ToyBlock : public Unit {
 public:
  ToyBlock(const std::string& name, Parameter& mix, const ModelStrategies& strategies)
      : Unit(name, {&mix}), mix_({&mix}, 0, strategies.products) {}
  HiddenStates forward(const HiddenStates& input, const BatchContext&, UnitContext& context) override {
    return {add_closing(input[0], mix_.forward(input[0], context)[0], context)};
  }

 private:
  ParallelLinear mix_;
};

class ToyHead : public Unit {
 public:
  explicit ToyHead(Parameter& output) : Unit("guess", {&output}), output_(output) {}
  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override {
    return {
        linear_cross_entropy(input[0], batch.labels, output_, {.chunks = 2, .loss_scale = batch.loss_scale}, context)};
  }

 private:
  Parameter& output_;
};

Initialiser some_numbers() { return {Initialiser::Kind::normal, 0.3}; }
ParameterSpec words() { return {"words.weight", {kWords, kDim}, some_numbers()}; }
ParameterSpec mix(int64_t layer) { return {"mix." + std::to_string(layer) + ".weight", {kDim, kDim}, some_numbers()}; }
ParameterSpec guess() { return {"guess.weight", {kWords, kDim}, some_numbers()}; }

class ToyModel : public Model {
 public:
  explicit ToyModel(const ModelStrategies& strategies) {
    chain_.push_back(std::make_shared<ToyEmbedding>(add_parameter(words())));
    for (int64_t layer = 0; layer < 2; ++layer) {
      chain_.push_back(
          std::make_shared<ToyBlock>("mix." + std::to_string(layer), add_parameter(mix(layer)), strategies));
    }
    chain_.push_back(std::make_shared<ToyHead>(add_parameter(guess())));
  }
  void prepare(const at::Device&) override {}
};

/// The toy without tensors.
ModelDescription describe_toy() {
  auto words_trace = [](UnitTrace& trace) { trace.set_ends({}, {trace_embedding(trace, kDim)}); };
  auto mix_trace = [](int64_t layer) {
    return [layer](UnitTrace& trace) {
      const TracedTensor input = trace.tensor(trace.shape().tokens() * kDim * 4);
      const TracedTensor mixed = trace_linear(trace, input, kDim, {{mix(layer).name, kDim}}, 0, LinearSplit::input)[0];
      trace.set_ends({input}, {trace_closing(trace, input, mixed)});
    };
  };
  auto policy = [](const RecomputeSelection& selection, int64_t) {
    return selection.mode == RecomputeSelection::Mode::none ? RecomputePolicy::none() : RecomputePolicy::full();
  };
  auto guess_trace = [](UnitTrace& trace) {
    const TracedTensor input = trace.tensor(trace.shape().tokens() * kDim * 4);
    trace_cross_entropy(trace, input, kDim, kWords);
    trace.set_ends({input}, {});
  };
  ModelDescription model;
  model.name = "toy";
  model.units = {{"words", UnitRole::embedding, {words()}, {}, words_trace},
                 {"mix.0", UnitRole::block, {mix(0)}, {}, mix_trace(0), policy},
                 {"mix.1", UnitRole::block, {mix(1)}, {}, mix_trace(1), policy},
                 {"guess", UnitRole::head, {guess()}, {}, guess_trace}};
  for (size_t u = 0; u + 1 < model.units.size(); ++u) model.units[u].hands_on = {{"mixed", kDim}};
  model.dim = kDim, model.layers = 2, model.vocabulary = kWords;
  return model;
}

struct RunningToy {
  explicit RunningToy(RecomputeSelection::Mode mode) {
    model = std::make_unique<ToyModel>(ModelStrategies{});
    PlanRequest request = plain_plan();
    request.samples = 2, request.sequence_length = 5, request.recompute.mode = mode;
    const Plan plan = make_plan(describe_toy(), request);
    const auto arena = std::make_shared<MemoryArena>(at::kCPU);
    const auto host_offload = std::make_shared<HostOffload>(arena, arena);
    WeightStores weights;
    for (const WeightGroupPlan& group : plan.groups) {
      std::vector<Parameter*> members;
      for (const ParameterPlan& planned : group.parameters) members.push_back(&model->parameter(planned.spec.name));
      weights.push_back(std::make_unique<WeightStore>(group, members, request, host_offload));
    }
    for (const auto& p : model->parameter_handles()) initialise(*p, p->layout().first_box(), 3);
    executor = std::make_unique<Executor>(plan, model->chain(), std::move(weights), std::make_unique<EagerRunner>(),
                                          ExecutorOptions{.count_saved_bytes = true});
  }
  std::unique_ptr<Model> model;
  std::unique_ptr<Executor> executor;
};

TEST(ModelFamily, ANewDecoderRunsOnThePlanAndTheExecutorAsTheyAre) {
  for (auto mode : {RecomputeSelection::Mode::none, RecomputeSelection::Mode::full}) {
    RunningToy toy(mode);
    BatchContext batch;
    batch.tokens = integers({2, 5}, kWords, 1);
    batch.labels = integers({2, 5}, kWords, 2);
    batch.loss_scale = 0.1;
    const at::Tensor loss = forward(*toy.executor, batch, 0);
    for (size_t u = 0; u < 4; ++u) {
      EXPECT_EQ(toy.executor->saved_bytes(u, 0), toy.executor->plan().units[u].saved_bytes) << u;
    }
    backward(*toy.executor, batch, 0, true);

    std::vector<at::Tensor> weights;
    for (const auto& parameter : toy.model->parameter_handles()) weights.push_back(leaf(as_double(parameter->master)));
    at::Tensor x = weights[0].index_select(0, batch.tokens.flatten());
    for (size_t layer : {1, 2}) x = x + x.mm(weights[layer].t());
    const at::Tensor rows = x.mm(weights[3].t()).log_softmax(1);
    const at::Tensor expected = -rows.gather(1, batch.labels.view({-1, 1})).sum() * 0.1;
    EXPECT_TRUE(near(loss, expected, 1e-6));
    const auto gradients = backward({expected}, {at::ones({}, at::kDouble)}, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto& parameter = toy.model->parameter_handles()[i];
      EXPECT_TRUE(near(parameter->gradient_shard, gradients[i], 5e-6)) << parameter->name();
    }
  }
}

TEST(ModelFamily, TheRegistryServesEachNameByOneFamilyAndOneArchitecture) {
  std::set<std::string> seen, described;
  for (const ModelFamily* family : model_families()) {
    for (const std::string& name : family->names()) {
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_EQ(find_model_family(name), family);
    }
  }
  for (const Architecture* architecture : architectures()) {
    for (const std::string& name : architecture->names()) {
      EXPECT_TRUE(described.insert(name).second) << name;
      EXPECT_EQ(find_architecture(name), architecture);
      EXPECT_TRUE(architecture->has_flavor(name, kCustomFlavor)) << name;
    }
  }
  EXPECT_EQ(described, seen) << "what is described can be built";
  EXPECT_TRUE(seen.contains("llama3_1"));
}

}  // namespace
}  // namespace titan
