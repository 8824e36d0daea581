// Weights that ranks share out: when they are gathered and reduced, and how many bytes they hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/model.h"
#include "titan/base/error.h"
#include "titan/parallel/assembly.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

/// Rank 0 of two, alone: notes when gathers begin and when they are waited for.
class TracedCommunicator : public Communicator {
 public:
  TracedCommunicator(std::string name, std::vector<std::string>* trace)
      : Communicator(std::move(name), 0, 2), trace_(trace), inner_(make_fake_communicator("inner", 0, 2)) {}
  std::string_view transport() const override { return "nothing"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  struct Noted : PendingCollective {
    Noted(std::vector<std::string>* trace, std::string line) : trace(trace), line(std::move(line)) {}
    void wait() override {
      if (!line.empty()) trace->push_back(line);
      line.clear();
    }
    std::vector<std::string>* trace;
    std::string line;
  };

  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    return note("gather", inner_->all_gather(outputs, inputs));
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    return note("scatter", inner_->reduce_scatter(outputs, inputs));
  }
  Pending start_all_reduce(Tensors tensors, Reduction) override {
    return note("all-reduce", inner_->all_reduce(tensors));
  }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    return inner_->transfer(std::move(receives), std::move(sends));
  }

 private:
  Pending note(const std::string& kind, const Pending&) {
    const std::string line = fmt::format("{} {}", kind, ++calls_);
    trace_->push_back(line + " begins");
    return std::make_unique<Noted>(trace_, line + " is waited for");
  }

  std::vector<std::string>* trace_;
  std::unique_ptr<Communicator> inner_;
  int calls_ = 0;
};

/// Runs units eagerly and notes when; only the weights of the unit that runs are in use then.
class TracedRunner : public UnitRunner {
 public:
  TracedRunner(std::vector<std::string>* trace, std::shared_ptr<SlotPool> slots)
      : trace_(trace), slots_(std::move(slots)) {}
  HiddenStates forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) override {
    trace_->push_back("forward " + unit.name());
    EXPECT_EQ(slots_->in_use(), 1) << unit.name();
    return inner_.forward(unit, input, batch, state);
  }
  HiddenStates backward(Unit& unit, const HiddenStates& gradients, const BatchContext& batch,
                        UnitState& state) override {
    trace_->push_back("backward " + unit.name());
    EXPECT_EQ(slots_->in_use(), unit.name() == "tok_embeddings" ? 0 : 1) << unit.name();
    return inner_.backward(unit, gradients, batch, state);
  }

 private:
  std::vector<std::string>* trace_;
  std::shared_ptr<SlotPool> slots_;
  EagerRunner inner_;
};

/// Where `line` is in `trace`; it must be there.
std::ptrdiff_t place_in(const std::vector<std::string>& trace, const std::string& line) {
  const auto found = std::find(trace.begin(), trace.end(), line);
  EXPECT_NE(found, trace.end()) << line;
  return found - trace.begin();
}

/// Rank 0 of two that shard a small model between them.
struct Sharded {
  explicit Sharded(PlanRequest request = small_plan(), const ModelRequest& model = small_request()) {
    const ModelFamily& family = *find_model_family(model.model.name);
    description = describe_model(model);
    request.sequence_length = model.sequence_length;
    request.place = {DeviceMesh({1, 1, 2, 1, 1}, 2), 0};
    plan = make_plan(description, request);
    MeshCommunicators communicators;
    communicators.gather = std::make_shared<TracedCommunicator>("fsdp_gather", &trace);
    communicators.scatter = std::make_shared<TracedCommunicator>("fsdp_scatter", &trace);
    assembly = assemble(family, model, {}, plan, communicators, at::kCPU, 11);
  }

  BatchContext batch() const {
    BatchContext context;
    context.tokens = integers({2, 13}, description.vocabulary, 5);
    context.labels = integers({2, 13}, description.vocabulary, 6);
    context.loss_scale = 1.0 / 26;
    return context;
  }

  size_t place(const std::string& line) const { return static_cast<size_t>(place_in(trace, line)); }

  std::vector<std::string> trace;
  ModelDescription description;
  Plan plan;
  Assembly assembly;
};

/// The same with a runner that notes; with replicas, as HSDP.
std::vector<std::string> traced_step(int64_t replicas = 1, int64_t layers = 3) {
  std::vector<std::string> trace;
  ModelRequest model = small_request();
  model.model.override_sizes.n_layers = layers;
  const ModelFamily& family = *find_model_family(model.model.name);
  PlanRequest request = small_plan();
  request.sequence_length = model.sequence_length;
  request.place = {DeviceMesh({1, replicas, 2, 1, 1}, replicas * 2), 0};
  const Plan plan = make_plan(describe_model(model), request);

  const auto host_offload = no_offload();
  const auto slots = std::make_shared<SlotPool>(plan, host_offload->device());
  MeshCommunicators communicators;
  communicators.gather = std::make_shared<TracedCommunicator>("fsdp_gather", &trace);
  communicators.scatter = std::make_shared<TracedCommunicator>("fsdp_scatter", &trace);
  if (replicas > 1) communicators.replicate = std::make_shared<TracedCommunicator>("dp_replicate", &trace);
  std::unique_ptr<Model> built = family.build(model, {});
  built->prepare(at::kCPU);
  WeightStores weights;
  for (const WeightGroupPlan& group : plan.groups) {
    std::vector<Parameter*> members;
    for (const ParameterPlan& planned : group.parameters) members.push_back(&built->parameter(planned.spec.name));
    weights.push_back(std::make_unique<WeightStore>(group, members, plan.request, host_offload, slots, communicators));
  }
  for (const auto& parameter : built->parameter_handles()) initialise(*parameter, parameter->shard_box(), 11);
  Executor executor(plan, built->chain(), std::move(weights), std::make_unique<TracedRunner>(&trace, slots));
  BatchContext batch;
  batch.tokens = integers({2, 13}, 59, 5);
  batch.labels = integers({2, 13}, 59, 6);
  forward(executor, batch, 0);
  backward(executor, batch, 0, /*is_last=*/true);
  return trace;
}

TEST(WeightStoreSharded, TheNextUnitsGatherBeginsBeforeAUnitRunsAndIsWaitedForAfterwards) {
  const std::vector<std::string> trace = traced_step();
  const auto at = [&](const std::string& line) { return place_in(trace, line); };
  // Gather 1 is the embedding's; unit u's own is number u + 1.
  const std::vector<std::string> units{"tok_embeddings", "layers.0", "layers.1", "layers.2", "head"};
  for (size_t u = 0; u + 1 < units.size(); ++u) {
    const std::string next = fmt::format("gather {}", u + 2);
    EXPECT_LT(at(next + " begins"), at("forward " + units[u]));
    EXPECT_GT(at(next + " is waited for"), at("forward " + units[u]));
  }
}

TEST(WeightStoreSharded, BackwardToo) {
  const std::vector<std::string> trace = traced_step(/*replicas=*/1, /*layers=*/5);
  const auto at = [&](const std::string& line) { return place_in(trace, line); };
  // Seven groups came in forward; the last two blocks are still in their slots.
  for (const auto& [gather, meanwhile] :
       {std::pair("gather 8", "layers.3"), {"gather 9", "layers.2"}, {"gather 10", "layers.1"}}) {
    EXPECT_LT(at(std::string(gather) + " begins"), at(std::string("backward ") + meanwhile));
    EXPECT_GT(at(std::string(gather) + " is waited for"), at(std::string("backward ") + meanwhile));
  }
  EXPECT_EQ(std::count(trace.begin(), trace.end(), "gather 11 begins"), 0);
}

TEST(WeightStoreSharded, AUnitsReductionGoesOnWhileTheNextBackwardRuns) {
  const std::vector<std::string> trace = traced_step();
  auto at = [&](const std::string& line) { return std::find(trace.begin(), trace.end(), line) - trace.begin(); };
  // Scatter 1 is the head's, 2 that of the last block.
  EXPECT_LT(at("scatter 1 begins"), at("backward layers.2"));
  EXPECT_GT(at("scatter 1 is waited for"), at("backward layers.2"));
  EXPECT_GT(at("scatter 2 is waited for"), at("backward layers.1"));
}

TEST(WeightStoreSharded, SumsOverReplicasAreUnderWayWhileOneMoreBackwardRuns) {
  const std::vector<std::string> trace = traced_step(/*replicas=*/2);
  const auto at = [&](const std::string& line) { return place_in(trace, line); };
  // All-reduce 1 is the head's, whose reduce-scatter overlapped with the last block's backward.
  EXPECT_GT(at("all-reduce 1 begins"), at("scatter 1 is waited for"));
  EXPECT_LT(at("all-reduce 1 begins"), at("backward layers.1"));
  EXPECT_GT(at("all-reduce 1 is waited for"), at("backward layers.1"));
  EXPECT_LT(at("all-reduce 2 begins"), at("backward layers.0"));
  EXPECT_GT(at("all-reduce 2 is waited for"), at("backward layers.0"));
  EXPECT_GE(at("all-reduce 5 is waited for"), 0) << "none is left over";
}

TEST(WeightStoreSharded, WhatIsStillInItsSlotIsNotSentAgain) {
  const std::vector<std::string> trace = traced_step();
  const auto gathers = std::count_if(trace.begin(), trace.end(), [](const std::string& line) {
    return line.starts_with("gather") && line.ends_with("begins");
  });
  // Five groups forward; backward, two blocks are still in the two slots, and the embedding needs no weights.
  EXPECT_EQ(gathers, 5 + 1);
}

TEST(WeightStoreSharded, HoldAsManyBytesAsThePlanSays) {
  for (const auto& [offload, reduce] : {std::pair{false, ElementType::float32},
                                        {true, ElementType::float32},
                                        {false, ElementType::bfloat16},
                                        {true, ElementType::bfloat16}}) {
    PlanRequest request = small_plan();
    request.training.mixed_precision_param = ElementType::bfloat16;
    request.training.mixed_precision_reduce = reduce;
    request.training.enable_cpu_offload = offload;
    Sharded sharded(request);
    int64_t shards = 0, slots = 0, gradients = 0;
    for (const WeightGroupPlan& group : sharded.plan.groups) {
      shards += group.shard_numel * (4 + 2 + 4);
      gradients += group.shard_numel * 4;
    }
    EXPECT_EQ(sharded.assembly.executor->gradient_bytes(), gradients);
    for (int64_t bytes : sharded.plan.weight_slots) slots += bytes;
    for (int64_t bytes : sharded.plan.gradient_slots) slots += bytes;
    EXPECT_EQ(sharded.assembly.slots->weight_bytes() + sharded.assembly.slots->gradient_bytes(), slots);
    for (int64_t bytes : sharded.plan.message_slots) slots += bytes;
    HostOffload& host_offload = *sharded.assembly.offload;
    if (offload) {
      EXPECT_EQ(host_offload.host().held_bytes(), shards) << "masters, bf16 copies and reduced gradients";
      EXPECT_EQ(host_offload.device().held_bytes(), slots);
    } else {
      EXPECT_EQ(host_offload.device().held_bytes(), shards + slots);
    }
    forward(*sharded.assembly.executor, sharded.batch(), 0);
    backward(*sharded.assembly.executor, sharded.batch(), 0, true);
    const int64_t most = host_offload.device().peak_bytes() - (offload ? slots : shards + slots);
    EXPECT_GT(most, 0) << "padding is counted";
    EXPECT_LE(most, memory_of(sharded.plan).at("padding of uneven shards")) << "nothing more during a step";
  }
}

TEST(WeightStoreSharded, GradientsThatAreSteppedOnTheHostAreThereOnlyOnceItHasWaited) {
  for (const ElementType reduce : {ElementType::float32, ElementType::bfloat16}) {
    PlanRequest request = small_plan();
    request.training.mixed_precision_param = ElementType::bfloat16;
    request.training.mixed_precision_reduce = reduce;
    request.training.enable_cpu_offload = true;
    Sharded sharded(request);
    Executor& executor = *sharded.assembly.executor;
    std::map<std::string, at::Tensor> on_device;
    const Executor::Observer before_they_leave = [&](const Action& action) {
      if (action.kind != ActionKind::to_host) return;
      for (const Parameter* parameter : sharded.assembly.group_parameters[static_cast<size_t>(action.group)]) {
        on_device[parameter->name()] = parameter->gradient_shard.clone();
      }
    };
    forward(executor, sharded.batch());
    backward(executor, sharded.batch(), 0, /*is_last=*/true, before_they_leave);
    EXPECT_EQ(sharded.assembly.offload->to_host_bytes(), sharded.plan.to_host_bytes) << "they have left";
    for (const Parameter* parameter : sharded.assembly.parameters) {
      EXPECT_FALSE(parameter->gradient_shard.defined()) << parameter->name();
    }
    EXPECT_THROW(executor.zero_gradient(), InvariantError) << "no optimizer has read them";
    wait_host(executor);
    for (const Parameter* parameter : sharded.assembly.parameters) {
      EXPECT_TRUE(same_bits(parameter->gradient_shard, on_device.at(parameter->name()))) << parameter->name();
    }
    executor.zero_gradient();
  }
}

TEST(WeightStoreSharded, CopiesThatWereStaleBeforeAWriterMadeSomeAreMadeAgain) {
  PlanRequest request = small_plan();
  request.training.mixed_precision_param = ElementType::bfloat16;
  Sharded sharded(request);
  for (Parameter* parameter : sharded.assembly.parameters) {
    parameter->master.fill_(5.0);
    parameter->compute_copy_written = true;
  }
  sharded.assembly.executor->weights_changed();  // no copy was ever made
  sharded.assembly.executor->infer(sharded.batch(), UnitMode::evaluate);
  for (const Parameter* parameter : sharded.assembly.parameters) {
    EXPECT_TRUE(parameter->compute_copy.eq(5.0).all().item<bool>()) << parameter->name();
  }
}

TEST(WeightStoreSharded, AWeightIsUndefinedAfterReshard) {
  Sharded sharded;
  forward(*sharded.assembly.executor, sharded.batch(), 0);
  for (const Parameter* parameter : sharded.assembly.group_parameters[1]) {
    EXPECT_THROW(parameter->weight(), InvariantError) << parameter->name();
  }
}

TEST(WeightStoreSharded, EveryParameterIsOwnedOnceWhateverTheCut) {
  for (const int64_t ranks : {2, 3, 7}) {
    std::map<std::string, int64_t> owned, all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const ModelRequest model = small_request();
      PlanRequest request = small_plan();
      request.place = {DeviceMesh({1, 1, ranks, 1, 1}, ranks), rank};
      for (const WeightGroupPlan& group : make_plan(describe_model(model), request).groups) {
        for (const ParameterPlan& parameter : group.parameters) {
          owned[parameter.spec.name] += parameter.shard.numel();
          all[parameter.spec.name] = parameter.spec.numel();
        }
      }
    }
    EXPECT_EQ(owned, all) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace titan
