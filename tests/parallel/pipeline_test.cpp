// A pipeline, run: stand-in stages show that it does what the table says when the table says it, keeps what the
// simulation says and takes the time that the simulation says; real products show where weight gradients are made.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "post_office.h"
#include "stand_in_stages.h"
#include "support/model.h"
#include "titan/schedule/lowering.h"

namespace titan {
namespace {

/// The compute actions of a rank's list, a B as I and W.
std::vector<Action> halves(const std::vector<Action>& actions) {
  std::vector<Action> result;
  for (const Action& merged : actions) {
    for (const Action& action : leaves(merged)) {
      if (!is_compute(action.kind)) continue;
      if (action.kind != ActionKind::backward) {
        result.push_back(action);
        continue;
      }
      result.push_back({ActionKind::input_gradient, action.stage, action.microbatch});
      result.push_back({ActionKind::weight_gradient, action.stage, action.microbatch});
    }
  }
  return result;
}

TEST(Pipeline, DoesTheTablesActionsInOrderAndKeepsWhatTheSimulationSaysInEveryLegalShape) {
  for (const NamedShape& one : shapes(true)) {
    const StandInPipeline pipeline(one);
    ASSERT_TRUE(pipeline.planned.problems.empty()) << one.text();
    const ScheduleTable lowered = lower(pipeline.planned.compute, {.sharded = false});
    const Simulation simulated = simulate(lowered, {});
    for (int rank = 0; rank < one.shape.ranks; ++rank) {
      // A rank's messages hold nothing that its stages look at, so it can run alone.
      StandInRank alone(pipeline, rank, make_fake_communicator("pp", rank, one.shape.ranks));
      alone.run();
      const int expected = simulated.ranks[static_cast<size_t>(rank)].peak_live;
      ASSERT_EQ(alone.log().done, halves(lowered[static_cast<size_t>(rank)])) << one.text() << ", rank " << rank;
      ASSERT_EQ(alone.log().most_live, expected) << one.text() << ", rank " << rank;
      ASSERT_EQ(alone.most_live(), expected) << one.text() << ", rank " << rank;
      ASSERT_EQ(alone.log().live, 0) << one.text() << ", rank " << rank;
    }
  }
}

struct Measured {
  double time = 0;
  std::vector<int> peaks;
};

/// Threads as ranks; the time is virtual.
Measured run_ranks(const StandInPipeline& pipeline, const ActionTimes& times) {
  const auto office = std::make_shared<PostOffice>(times.transfer);
  const int size = pipeline.shape.ranks;
  std::vector<std::future<std::pair<double, int>>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto now = std::make_shared<double>(0);
      StandInRank stages(pipeline, rank, std::make_shared<PostCommunicator>(office, now, rank, size), times.stage, now);
      stages.run();
      return std::pair(*now, stages.log().most_live);
    }));
  }
  Measured measured;
  for (auto& rank : ranks) {
    const auto [end, peak] = rank.get();
    measured.time = std::max(measured.time, end);
    measured.peaks.push_back(peak);
  }
  return measured;
}

TEST(Pipeline, TakesTheSimulatedTimeInEveryScheduleOnEightRanks) {
  ActionTimes times;
  times.stage = {1, 1.2, 0.8};
  times.transfer = 0.1;
  for (const ScheduleFamily& family : schedule_families()) {
    const NamedShape named{&family, {8, family.least_stages_per_rank, family.name == "DualPipeV" ? 16 : 8}};
    SCOPED_TRACE(named.text());
    const StandInPipeline pipeline(named);
    const Measured measured = run_ranks(pipeline, times);
    const Simulation simulated = simulate(lower(pipeline.planned.compute, {.sharded = false}), times);
    EXPECT_NEAR(measured.time / simulated.time, 1, 1e-9);
    for (size_t rank = 0; rank < measured.peaks.size(); ++rank) {
      EXPECT_EQ(measured.peaks[rank], simulated.ranks[rank].peak_live);
    }
  }
}

/// Counts products by what they yield.
class CountedProducts : public DenseProducts {
 public:
  void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                      at::Tensor& dx) const override {
    ++inputs;
    DenseProducts::input_gradient(dy, weight, columns, dx);
  }
  void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const override {
    ++weights;
    DenseProducts::weight_gradient(dy, x, weight);
  }
  mutable int inputs = 0, weights = 0;
};

TEST(Pipeline, MakesTheWeightGradientsOfAMicrobatchInItsOwnActionAndNoneInTheInputGradients) {
  constexpr int kProducts = 7;  // of a block: wq, wk, wv, wo, w1, w2, w3
  PlanRequest request = small_plan();
  request.accumulation = 3;
  PipelinePart part;
  part.stages = {{0, 0, 2}, {1, 2, 5}};  // embedding and a block; two blocks and the head
  part.rank_of_stage = {0, 0};
  part.microbatches = 3;
  part.splits_backward = true;
  request.pipeline = part;
  const auto products = std::make_shared<CountedProducts>();
  SmallModel model(small_request(), request, {}, SmallModel::resident, products);
  const std::vector<BatchContext> batches(3, model.batch());
  StepWork none;
  auto run = [&](const std::vector<Action>& table) {
    model.executor->run(expand(model.plan, table, model.executor->state(), /*is_last=*/false), batches, none);
  };
  using enum ActionKind;
  for (int m : {0, 1, 2}) run({{forward, 0, m}, {forward, 1, m}});
  EXPECT_EQ(products->inputs + products->weights, 0);
  for (int m : {0, 1, 2}) {
    run({{input_gradient, 1, m}, {input_gradient, 0, m}});
    EXPECT_EQ(products->weights, 0) << "microbatch " << m;
  }
  EXPECT_EQ(products->inputs, 3 * 3 * kProducts);
  int expected = 0;
  for (int m : {2, 0, 1}) {
    run({{weight_gradient, 1, m}});
    EXPECT_EQ(products->weights, expected += 2 * kProducts) << "microbatch " << m;
    run({{weight_gradient, 0, m}});
    EXPECT_EQ(products->weights, expected += kProducts) << "microbatch " << m;
  }
  EXPECT_EQ(products->inputs, 3 * 3 * kProducts);
}

}  // namespace
}  // namespace titan
