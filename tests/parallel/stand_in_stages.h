// Ranks of a pipeline whose stages compute nothing: they count what is kept, write down what is run, and advance a
// virtual clock where others compute. What runs them is the real thing: plan, lowered table, program and executor.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "schedule/shapes.h"
#include "titan/parallel/executor.h"
#include "titan/parallel/pipeline_part.h"
#include "titan/schedule/simulator.h"

namespace titan {

/// What the stages of one rank did and kept.
struct StageLog {
  std::vector<Action> done;  // F, I and W; a B is both of the latter
  int live = 0;              // pairs of stage and microbatch that something is still held of
  int most_live = 0;
};

/// The work of a stage is done by the first of its units.
class StandInStages : public UnitRunner {
 public:
  StandInStages(const Plan& plan, const StageTimes& times, std::shared_ptr<double> now, std::shared_ptr<StageLog> log)
      : times_(times), now_(std::move(now)), log_(std::move(log)), rows_(plan.stream_rows), width_(plan.stream_width) {
    for (const StagePlan& stage : plan.stages) stages_[plan.units[stage.first].name] = static_cast<int>(stage.number);
  }

  Stream forward(Unit& unit, const Stream&, const BatchContext& batch, UnitState& state) override {
    if (const auto stage = stages_.find(unit.name()); stage != stages_.end()) {
      state.leaves = {kept()};
      work(ActionKind::forward, stage->second, batch);
    }
    return {unit.name() == "head" ? at::zeros({}, at::kDouble) : at::zeros({rows_, width_})};
  }

  Stream backward(Unit& unit, const Stream&, const BatchContext& batch, UnitState& state) override {
    if (const auto stage = stages_.find(unit.name()); stage != stages_.end()) {
      work(ActionKind::input_gradient, stage->second, batch);
      state.context->sink->submit([this, number = stage->second, batch, held = state.leaves[0]] {
        work(ActionKind::weight_gradient, number, batch);
      });
    }
    state = UnitState();
    return {at::zeros({rows_, width_})};
  }

 private:
  /// Counted for as long as anybody holds it.
  at::Tensor kept() {
    log_->most_live = std::max(log_->most_live, ++log_->live);
    return at::from_blob(
        &memory_, {1}, [log = log_](void*) { --log->live; }, at::kByte);
  }

  void work(ActionKind kind, int stage, const BatchContext& batch) {
    *now_ += times_.of(kind);
    log_->done.push_back({kind, stage, static_cast<int>(batch.tokens[0][0].item<int64_t>())});
  }

  std::map<std::string, int> stages_;  // by their first unit
  StageTimes times_;
  std::shared_ptr<double> now_;  // the rank's virtual time
  std::shared_ptr<StageLog> log_;
  int64_t rows_, width_;
  uint8_t memory_ = 0;
};

/// A schedule over a model that has just enough layers.
struct StandInPipeline {
  explicit StandInPipeline(const NamedShape& named) : shape(named.shape) {
    ModelRequest request;
    request.name = "llama3";
    request.flavor = "debugmodel";
    request.sequence_length = 2;
    request.sizes = {.dim = 8,
                     .n_layers = std::max(1, shape.stages() - 2),
                     .n_heads = 2,
                     .n_kv_heads = 2,
                     .multiple_of = 8,
                     .vocab_size = 16};
    family = find_model_family(request.name);
    model = family->describe(request);
    built = family->build(request, {});
    PipelineRequest pipeline;
    pipeline.ranks = shape.ranks;
    pipeline.schedule = named.family->name;
    pipeline.local_batch_size = shape.microbatches;
    pipeline.chain = chain_of(model);
    pipeline.split.default_stages_per_rank = shape.stages_per_rank;
    planned = plan_pipeline(pipeline);
  }

  PipelineShape shape;
  const ModelFamily* family;
  ModelDescription model;
  std::unique_ptr<Model> built;
  PipelinePlan planned;
};

class StandInRank {
 public:
  StandInRank(const StandInPipeline& pipeline, int64_t rank, std::shared_ptr<Communicator> communicator,
              const StageTimes& times = {}, const std::shared_ptr<double>& now = std::make_shared<double>(0)) {
    PlanRequest request;
    request.sequence_length = 2;
    request.accumulation = pipeline.shape.microbatches;
    request.place = {DeviceMesh({.pp = pipeline.shape.ranks, .dp_shard = 1}, pipeline.shape.ranks), rank};
    request.pipeline = pipeline_part(pipeline.planned, pipeline.model, rank);
    const Plan plan = make_plan(pipeline.model, *pipeline.family, request);
    const auto arena = std::make_shared<MemoryArena>(at::kCPU);
    const auto host_offload = std::make_shared<HostOffload>(arena, arena);
    WeightStores weights;  // of no parameters
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      weights.push_back(
          std::make_unique<WeightStore>(WeightGroupPlan(), std::vector<Parameter*>(), request, host_offload));
    }
    ExecutorOptions options;
    options.pipeline = std::move(communicator);
    executor_ = std::make_unique<Executor>(plan, pipeline.built->chain(), std::move(weights),
                                           std::make_unique<StandInStages>(plan, times, now, log_), options);
    // Every microbatch is one sample that holds its number.
    for (int64_t m = 0; m < pipeline.shape.microbatches; ++m) {
      batches_.emplace_back();
      batches_.back().tokens = batches_.back().labels = at::full({1, 2}, m, at::kLong);
    }
  }

  void run() {
    StepWork none;
    executor_->run(executor_->program(ProgramKind::last_pass), batches_, none);
  }
  const StageLog& log() const { return *log_; }
  int64_t most_live() const { return executor_->most_live(); }
  const PipelinePart& part() const { return *executor_->plan().request.pipeline; }

 private:
  std::shared_ptr<StageLog> log_ = std::make_shared<StageLog>();
  std::unique_ptr<Executor> executor_;
  std::vector<BatchContext> batches_;
};

}  // namespace titan
