#include "titan/parallel/graph_runner.h"

#include <gtest/gtest.h>

#include "support/model.h"
#include "support/replayed_work.h"
#include "support/selections.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

/// A small model whose blocks are recorded, and the runner that does it.
struct Recorded {
  explicit Recorded(const ModelRequest& request = small_request(), const PlanRequest& plan = small_plan())
      : small(request, plan, {}, SmallModel::resident, std::make_shared<DenseProducts>(),
              [this](const SmallModel& model) { return runner_of(model); }) {}

  std::unique_ptr<UnitRunner> runner_of(const SmallModel& model) {
    std::vector<const Unit*> blocks;
    for (const UnitPlan& unit : model.plan.units) {
      if (unit.role == UnitRole::block) blocks.push_back(model.model->chain()[unit.chain_index].get());
    }
    block_count = static_cast<int64_t>(blocks.size());
    auto made = std::make_unique<GraphRunner>(std::move(blocks), std::make_unique<ReplayedWork>(counts));
    runner = made.get();
    return made;
  }

  std::shared_ptr<ReplayCounts> counts = std::make_shared<ReplayCounts>();
  GraphRunner* runner = nullptr;
  int64_t block_count = 0;
  SmallModel small;
};

/// A step of one microbatch; its gradients stay until the next.
at::Tensor step(SmallModel& small, const BatchContext& batch) {
  small.executor->zero_gradient();
  return small.run(batch);
}

PlanRequest recomputing_plan(const RecomputeSelection& selection) {
  PlanRequest request = small_plan();
  request.recompute = selection;
  return request;
}

TEST(GraphRunner, RecordsTheThirdStepAndReplaysFromThenOn) {
  Recorded recorded;
  for (int i = 1; i <= 5; ++i) {
    step(recorded.small, recorded.small.batch());
    EXPECT_EQ(recorded.counts->recorded, i < 3 ? 0 : 2 * recorded.block_count) << i;
    EXPECT_EQ(recorded.runner->counts().replayed, i < 4 ? 0 : (i - 3) * 2 * recorded.block_count) << i;
  }
}

TEST(GraphRunner, SeesNewInputsAndNewWeightsInOldPlaces) {
  Recorded recorded;
  SmallModel plain(small_request());
  for (int i = 1; i <= 6; ++i) {
    const BatchContext batch = plain.batch(static_cast<uint64_t>(i));
    EXPECT_TRUE(same_bits(step(recorded.small, batch), step(plain, batch))) << i;
    expect_same_gradients(recorded.small.gradients(), plain.gradients());
    for (SmallModel* model : {&recorded.small, &plain}) {
      for (const auto& parameter : model->model->parameter_handles()) parameter->master.mul_(1.01);
      model->executor->weights_changed();
    }
  }
}

TEST(GraphRunner, ReplaysUnitsThatAreRecomputed) {
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    Recorded recorded(small_request(), recomputing_plan(named.selection));
    SmallModel plain(small_request());
    for (int i = 1; i <= 4; ++i) {
      const BatchContext batch = plain.batch(static_cast<uint64_t>(i));
      EXPECT_TRUE(same_bits(step(recorded.small, batch), step(plain, batch))) << i;
      expect_same_gradients(recorded.small.gradients(), plain.gradients());
    }
    EXPECT_GT(recorded.runner->counts().replayed, 0);
  }
}

TEST(GraphRunner, LeavesStepsWithDocumentsToTheirOwnKernelCalls) {
  ModelRequest request = small_request();
  request.flavor = "debugmodel_varlen_attn";
  Recorded recorded(request);
  BatchContext batch = recorded.small.batch();
  batch.bounds.document_starts = {{0, 4, 5}, {0}};
  for (int i = 1; i <= 5; ++i) step(recorded.small, batch);
  EXPECT_EQ(recorded.counts->recorded, 0);
}

TEST(GraphRunner, RunsAUnitEagerlyOnceItsWeightsLieElsewhere) {
  Recorded recorded;
  SmallModel plain(small_request());
  const BatchContext batch = plain.batch();
  for (int i = 1; i <= 4; ++i) step(recorded.small, batch);
  const int64_t replayed = recorded.runner->counts().replayed;
  Parameter& moved = recorded.small.model->parameter("layers.0.feed_forward.w2.weight");
  moved.set_weight(moved.weight().clone());
  EXPECT_TRUE(same_bits(step(recorded.small, batch), step(plain, batch)));
  expect_same_gradients(recorded.small.gradients(), plain.gradients());
  EXPECT_EQ(recorded.runner->counts().replayed - replayed, 2 * (recorded.block_count - 1));
}

TEST(GraphRunner, RunsAUnitEagerlyOnceTheScaleOfAWeightLiesElsewhere) {
  Recorded recorded;
  const BatchContext batch = recorded.small.batch();
  for (int i = 1; i <= 4; ++i) step(recorded.small, batch);
  const int64_t replayed = recorded.runner->counts().replayed;
  recorded.small.model->parameter("layers.0.feed_forward.w2.weight").float8_scale = float8_scale_of(at::ones({}));
  step(recorded.small, batch);
  EXPECT_EQ(recorded.runner->counts().replayed - replayed, 2 * (recorded.block_count - 1));
}

TEST(GraphRunner, RunsBothDirectionsAgainWhenWeightsMoveBetweenThem) {
  Recorded recorded;
  SmallModel plain(small_request());
  const BatchContext batch = plain.batch();
  for (int i = 1; i <= 4; ++i) step(recorded.small, batch);
  recorded.small.executor->zero_gradient();
  const at::Tensor loss = forward(*recorded.small.executor, batch, 0);
  Parameter& moved = recorded.small.model->parameter("layers.1.attention.wq.weight");
  moved.set_weight(moved.weight().clone());
  backward(*recorded.small.executor, batch, 0, /*is_last=*/true);
  EXPECT_TRUE(same_bits(loss, step(plain, batch)));
  expect_same_gradients(recorded.small.gradients(), plain.gradients());
}

TEST(GraphRunner, KeepsToAFewShapes) {
  PlanRequest plan = small_plan();
  plan.samples = 6;
  Recorded recorded(small_request(), plan);
  const BatchContext batch = recorded.small.batch();
  for (int64_t samples = 1; samples <= 6; ++samples) {
    for (int i = 0; i < 3; ++i) step(recorded.small, samples_of(batch, 0, samples));
  }
  EXPECT_EQ(recorded.counts->prepared, 4);
}

}  // namespace
}  // namespace titan
