// Pipelines: with stand-in stages, that actions run in the table's order and that live activations and time are those
// of the simulation; with real products, where weight gradients are computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule/shapes.h"
#include "support/model.h"
#include "titan/base/error.h"
#include "titan/distributed/communicator.h"
#include "titan/parallel/executor.h"
#include "titan/plan/plan.h"
#include "titan/schedule/pipeline_plan.h"
#include "titan/schedule/simulator.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

// Messages between threads that play ranks, with the simulator's rule of time: a message leaves when both sides have
// posted it and the one before it in the same direction has arrived, and takes the same time whatever its size. Time is
// virtual: each rank has a clock of its own, which its work and the messages it waits for advance.
class PostOffice {
 public:
  using Direction = std::pair<int64_t, int64_t>;  // from, to
  struct Letter {
    at::Tensor content;
    double posted;                  // by the side that was first
    std::optional<double> arrival;  // once both sides have posted it
  };

  explicit PostOffice(double transfer) : transfer_(transfer) {}

  std::shared_ptr<Letter> send(const Direction& direction, const at::Tensor& content, double now) {
    return post(direction, content, now, /*sends=*/true);
  }
  std::shared_ptr<Letter> receive(const Direction& direction, const at::Tensor& content, double now) {
    return post(direction, content, now, /*sends=*/false);
  }

  /// → when the letter arrives.
  double wait(const Letter& letter) {
    std::unique_lock lock(mutex_);
    matched_.wait(lock, [&] { return letter.arrival.has_value(); });
    return *letter.arrival;
  }
  bool is_matched(const Letter& letter) {
    const std::lock_guard lock(mutex_);
    return letter.arrival.has_value();
  }

 private:
  struct Way {
    std::deque<std::shared_ptr<Letter>> sent, expected;  // one of them is empty
    double free = 0;
  };

  std::shared_ptr<Letter> post(const Direction& direction, const at::Tensor& content, double now, bool sends) {
    const std::lock_guard lock(mutex_);
    Way& way = ways_[direction];
    auto letter = std::make_shared<Letter>(Letter{content, now, std::nullopt});
    std::deque<std::shared_ptr<Letter>>& others = sends ? way.expected : way.sent;
    if (others.empty()) {
      (sends ? way.sent : way.expected).push_back(letter);
      return letter;
    }
    const std::shared_ptr<Letter> other = others.front();
    others.pop_front();
    if (sends) {
      other->content.copy_(content);
    } else {
      content.copy_(other->content);
    }
    way.free = std::max({way.free, now, other->posted}) + transfer_;
    letter->arrival = other->arrival = way.free;
    matched_.notify_all();
    return letter;
  }

  double transfer_;
  std::mutex mutex_;
  std::condition_variable matched_;
  std::map<Direction, Way> ways_;
};

/// One rank's end; transfers are all it can do. `now` is the rank's clock.
class PostCommunicator : public Communicator {
 public:
  PostCommunicator(std::shared_ptr<PostOffice> office, std::shared_ptr<double> now, int64_t rank, int64_t size)
      : Communicator("pp", rank, size), office_(std::move(office)), now_(std::move(now)) {}

  std::string_view transport() const override { return "threads"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    auto pending = std::make_unique<Letters>(office_, now_);
    for (const Message& message : sends) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->send({rank(), message.peer}, tensor, *now_));
      }
    }
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->receive({message.peer, rank()}, tensor, *now_));
        pending->awaited.push_back(pending->letters.back());
      }
    }
    return pending;
  }
  Pending start_all_gather(Tensors, Tensors) override { TITAN_CHECK(false && "a pipeline sends messages only"); }
  Pending start_reduce_scatter(Tensors, Tensors) override { TITAN_CHECK(false && "a pipeline sends messages only"); }
  Pending start_all_reduce(Tensors, Reduction) override { TITAN_CHECK(false && "a pipeline sends messages only"); }

 private:
  struct Letters : PendingCollective {
    Letters(std::shared_ptr<PostOffice> from, std::shared_ptr<double> clock)
        : office(std::move(from)), now(std::move(clock)) {}
    void wait() override {
      for (const auto& letter : awaited) *now = std::max(*now, office->wait(*letter));
    }
    bool inputs_free() override {
      return std::all_of(letters.begin(), letters.end(),
                         [&](const auto& letter) { return office->is_matched(*letter); });
    }
    std::shared_ptr<PostOffice> office;
    std::shared_ptr<double> now;
    std::vector<std::shared_ptr<PostOffice::Letter>> letters, awaited;
  };

  std::shared_ptr<PostOffice> office_;
  std::shared_ptr<double> now_;
};

// Ranks of a pipeline whose stages compute nothing: they count what is kept, write down what is run, and advance a
// virtual clock where others compute. What runs them is the real thing: plan, lowered table, program and executor.
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
      : times_(times),
        now_(std::move(now)),
        log_(std::move(log)),
        rows_(plan.hidden_rows),
        width_(plan.units[0].is_models_last ? width_of(plan.units[0].takes) : width_of(plan.units[0].hands_on)) {
    for (const StagePlan& stage : plan.stages) stages_[plan.units[stage.first].name] = static_cast<int>(stage.number);
  }

  HiddenStates forward(Unit& unit, const HiddenStates&, const BatchContext& batch, UnitState& state) override {
    if (const auto stage = stages_.find(unit.name()); stage != stages_.end()) {
      state.leaves = {kept()};
      work(ActionKind::forward, stage->second, batch);
    }
    return {unit.name() == "head" ? at::zeros({}, at::kDouble) : hidden()};
  }

  HiddenStates backward(Unit& unit, const HiddenStates&, const BatchContext& batch, UnitState& state) override {
    if (const auto stage = stages_.find(unit.name()); stage != stages_.end()) {
      work(ActionKind::input_gradient, stage->second, batch);
      state.context->sink->submit([this, number = stage->second, batch, held = state.leaves[0]] {
        work(ActionKind::weight_gradient, number, batch);
      });
    }
    state = UnitState();
    return {hidden()};
  }

 private:
  /// [rows, width], strided as a unit may return it: a communicator refuses it unless the message is packed.
  at::Tensor hidden() const { return at::zeros({width_, rows_}).t(); }
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
    request.model.name = "llama3";
    request.model.flavor = "debugmodel";
    request.sequence_length = 2;
    request.model.override_sizes = {.dim = 8,
                                    .n_layers = std::max(1, shape.stages() - 2),
                                    .n_heads = 2,
                                    .n_kv_heads = 2,
                                    .multiple_of = 8,
                                    .vocab_size = 16};
    family = find_model_family(request.model.name);
    model = describe_model(request);
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
    PlanRequest request = plain_plan();
    request.sequence_length = 2;
    request.accumulation = pipeline.shape.microbatches;
    request.place = {DeviceMesh({.pp = pipeline.shape.ranks, .dp_shard = 1}, pipeline.shape.ranks), rank};
    request.pipeline = pipeline_part(pipeline.planned, pipeline.model, rank);
    const Plan plan = make_plan(pipeline.model, request);
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
/// Counts one product for each weight.
class CountedProducts : public DenseProducts {
 public:
  const DenseProducts* dense() const override { return nullptr; }
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
  for (int m : {0, 1, 2}) {
    part.actions.insert(part.actions.end(), {{ActionKind::forward, 0, m},
                                             {ActionKind::forward, 1, m},
                                             {ActionKind::input_gradient, 1, m},
                                             {ActionKind::input_gradient, 0, m},
                                             {ActionKind::weight_gradient, 1, m},
                                             {ActionKind::weight_gradient, 0, m}});
  }
  part.actions.insert(part.actions.end(), {{ActionKind::reduce_grad, 1}, {ActionKind::reduce_grad, 0}});
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
  EXPECT_THROW(run({{weight_gradient, 1, 0}}), InvariantError) << "they have been made";
  EXPECT_EQ(products->inputs, 3 * 3 * kProducts);
}

}  // namespace
}  // namespace titan
