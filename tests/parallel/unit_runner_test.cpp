// Recorded graphs, of blocks and of whole microbatches, against eager runs.
#include <gtest/gtest.h>

#include "support/float8_scales.h"
#include "support/host_kernels.h"
#include "support/model.h"
#include "support/replayed_work.h"
#include "support/selections.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/assembly.h"
#include "titan/parallel/unit_runner.h"

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
  request.model.flavor = "debugmodel_varlen_attn";
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
  Parameter& moved = recorded.small.model->parameter("layers.1.attention.wo.weight");
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

ExecutorOptions fused_loss_options() {
  ExecutorOptions options;
  options.kernels = std::make_shared<FusedKernels>(host_kernels(), at::kCPU);
  options.loss_kernels = options.kernels;
  return options;
}

/// Kernels of which one finds no memory for what it is recorded into.
struct WithoutMemory {
  static inline std::shared_ptr<ReplayCounts> counts;
  static inline int64_t calls = 0;

  static ExecutorOptions options() {
    static Kernels table = host_kernels();  // FusedKernels refers to it
    table.swiglu_backward = [](const SwigluBackward& a, CUstream_st* stream) {
      if (counts && counts->recording && ++calls == 2) {
        counts->recording = false;
        throw GraphsDoNotFit("out of memory");
      }
      host_kernels().swiglu_backward(a, stream);
    };
    ExecutorOptions options;
    options.kernels = options.loss_kernels = std::make_shared<FusedKernels>(table, at::kCPU);
    return options;
  }
};

/// A rank that is alone: its model, and what was recorded of it; `recorded` false: without graphs.
struct Alone {
  explicit Alone(bool recorded, const PlanRequest& plan_request = small_plan(), const ExecutorOptions& options = {},
                 ModelRequest request = small_request()) {
    PlanRequest asked = plan_request;
    asked.sequence_length = request.sequence_length;
    asked.cuda_graphs = recorded;
    const ModelFamily& family = *find_model_family(request.model.name);
    description = describe_model(request);
    plan = make_plan(description, asked);
    assembly =
        assemble(family, request, {std::make_shared<DenseProducts>(), {.chunks = plan.request.training.loss_chunks}},
                 plan, {}, at::kCPU, /*seed=*/11, options, recorded ? std::make_unique<ReplayedWork>(counts) : nullptr);
    executor = assembly.executor.get();
  }

  BatchContext batch(uint64_t seed, int64_t ignored = 2) const {
    BatchContext context;
    context.tokens = integers({plan.request.samples, plan.request.sequence_length}, description.vocabulary, seed);
    context.labels = integers({plan.request.samples, plan.request.sequence_length}, description.vocabulary, seed + 1);
    context.labels[0].narrow(0, 0, ignored).fill_(kIgnoredLabel);
    context.loss_scale = 1.0 / static_cast<double>(context.labels.numel() - ignored);
    return context;
  }

  /// A step of these microbatches: their losses. Gradients stay until the next.
  std::vector<double> step(const std::vector<BatchContext>& batches) {
    executor->zero_gradient();
    std::vector<double> losses;
    for (size_t i = 0; i < batches.size(); ++i) {
      const ProgramKind kind = i + 1 == batches.size() ? ProgramKind::last_pass : ProgramKind::pass;
      StepWork none;
      losses.push_back(executor->run(executor->program(kind), {&batches[i], 1}, none).item<double>());
    }
    if (plan.request.training.enable_cpu_offload) wait_host(*executor);
    return losses;
  }

  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> result;
    for (const Parameter* parameter : assembly.parameters)
      result[parameter->name()] = parameter->gradient_shard.clone();
    return result;
  }

  void change_weights() {
    for (Parameter* parameter : assembly.parameters) parameter->master.mul_(1.01);
    executor->weights_changed();
  }

  std::shared_ptr<ReplayCounts> counts = std::make_shared<ReplayCounts>();
  ModelDescription description;
  Plan plan;
  Assembly assembly;
  Executor* executor = nullptr;
};

/// Steps with other tokens, masks and weights each time are the same bits with and without graphs.
void expect_same_steps(Alone& recorded, Alone& plain, int64_t steps, size_t microbatches = 1) {
  for (int64_t i = 1; i <= steps; ++i) {
    std::vector<BatchContext> batches;
    for (size_t m = 0; m < microbatches; ++m)
      batches.push_back(plain.batch(static_cast<uint64_t>(10 * i) + m, /*ignored=*/i + static_cast<int64_t>(m)));
    EXPECT_EQ(recorded.step(batches), plain.step(batches)) << i;
    expect_same_gradients(recorded.gradients(), plain.gradients());
    recorded.change_weights();
    plain.change_weights();
  }
}

/// Kernels that ask first which unit the executor says is under way.
struct Asking {
  static inline const Executor* executor = nullptr;
  static inline std::vector<std::string> heard;

  static Kernels kernels() {
    Kernels table = host_kernels();
    table.swiglu_forward = [](const SwigluForward& a, CUstream_st* stream) {
      heard.push_back(executor->position());
      host_kernels().swiglu_forward(a, stream);
    };
    table.swiglu_backward = [](const SwigluBackward& a, CUstream_st* stream) {
      heard.push_back(executor->position());
      host_kernels().swiglu_backward(a, stream);
    };
    return table;
  }
};

TEST(MicrobatchGraphs, RecordOneGraphOfForwardAndBackwardInTheThirdStepAndReplayIt) {
  Alone recorded(true);
  ASSERT_TRUE(recorded.plan.records_microbatches());
  for (int64_t i = 1; i <= 5; ++i) {
    recorded.step({recorded.batch(1)});
    EXPECT_EQ(recorded.counts->recorded, i < 3 ? 0 : 1) << i;
    EXPECT_EQ(recorded.counts->runs, i < 3 ? 0 : i - 2) << i;
  }
}

TEST(MicrobatchGraphs, SeeNewTokensMasksAndWeightsInOldPlaces) {
  for (const ElementType compute : {ElementType::float32, ElementType::bfloat16}) {
    Alone recorded(true, plan_in(compute)), plain(false, plan_in(compute));
    expect_same_steps(recorded, plain, 6);
    EXPECT_EQ(recorded.counts->runs, 4);
  }
}

TEST(MicrobatchGraphs, AreTheBitsOfEagerFusedKernelsToo) {
  Alone recorded(true, plan_in(ElementType::bfloat16), fused_loss_options());
  Alone plain(false, plan_in(ElementType::bfloat16), fused_loss_options());
  expect_same_steps(recorded, plain, 5);
  EXPECT_EQ(recorded.counts->runs, 3);
}

TEST(MicrobatchGraphs, InFloat8AreTheBitsOfEagerSteps) {
  ModelRequest request = small_request();
  request.sequence_length = 16;
  request.model.override_sizes = {
      .dim = 64, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .multiple_of = 16, .vocab_size = 59};
  PlanRequest plan = plan_in(ElementType::bfloat16);
  plan.float8 = LinearFloat8Section{};
  Alone recorded(true, plan, fused_loss_options(), request), plain(false, plan, fused_loss_options(), request);
  expect_same_steps(recorded, plain, 6);
  EXPECT_EQ(recorded.counts->runs, 4);
}

TEST(MicrobatchGraphs, TellFirstMicrobatchesFromThoseThatAddToThem) {
  Alone recorded(true), plain(false);
  expect_same_steps(recorded, plain, 5, /*microbatches=*/3);
  EXPECT_EQ(recorded.counts->recorded, 2);
  EXPECT_EQ(recorded.counts->runs, (5 - 2) + (2 * 5 - 2));
}

TEST(MicrobatchGraphs, ReplayUnitsThatAreRecomputed) {
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    Alone recorded(true, plan_in(ElementType::float32, named.selection));
    Alone plain(false, plan_in(ElementType::float32, named.selection));
    expect_same_steps(recorded, plain, 4);
    EXPECT_EQ(recorded.counts->runs, 2);
  }
}

TEST(MicrobatchGraphs, RunEagerlyOnceWeightsLieElsewhere) {
  Alone recorded(true), plain(false);
  const BatchContext batch = plain.batch(3);
  for (int i = 1; i <= 4; ++i) recorded.step({batch});
  Parameter& moved = recorded.assembly.model->parameter("layers.0.feed_forward.w2.weight");
  moved.set_weight(moved.weight().clone());
  EXPECT_EQ(recorded.step({batch}), plain.step({batch}));
  expect_same_gradients(recorded.gradients(), plain.gradients());
  EXPECT_EQ(recorded.counts->runs, 2);
}

TEST(MicrobatchGraphs, KeepToAFewShapes) {
  PlanRequest plan = small_plan();
  plan.samples = 6;
  Alone recorded(true, plan);
  const BatchContext batch = recorded.batch(1);
  for (int64_t samples = 1; samples <= 6; ++samples) {
    for (int i = 0; i < 3; ++i) recorded.step({samples_of(batch, 0, samples)});
  }
  EXPECT_EQ(recorded.counts->prepared, 4);
}

TEST(MicrobatchGraphs, LeaveStepsWithDocumentsToTheirOwnKernelCalls) {
  ModelRequest request = small_request();
  request.model.flavor = "debugmodel_varlen_attn";
  Alone recorded(true, small_plan(), {}, request);
  BatchContext batch = recorded.batch(1);
  batch.bounds.document_starts = {{0, 4, 5}, {0}};
  for (int i = 1; i <= 5; ++i) recorded.step({batch});
  EXPECT_EQ(recorded.counts->recorded, 0);
}

TEST(MicrobatchGraphs, LetTheExecutorSayWhichUnitIsUnderWay) {
  const Kernels table = Asking::kernels();
  ExecutorOptions options;
  options.kernels = std::make_shared<FusedKernels>(table, at::kCPU);
  Alone recorded(true, plan_in(ElementType::bfloat16), options);
  Asking::executor = recorded.executor;
  recorded.step({recorded.batch(1)});
  EXPECT_EQ(Asking::heard,
            (std::vector<std::string>{"forward of layers.0", "forward of layers.1", "forward of layers.2",
                                      "backward of layers.2", "backward of layers.1", "backward of layers.0"}));
}

TEST(MicrobatchGraphs, WithoutMemoryForThemStepsGoOnEagerlyWithTheSameBits) {
  const PlanRequest plan = plan_in(ElementType::bfloat16);
  for (const int64_t microbatches : {1, 2}) {
    Alone recorded(true, plan, WithoutMemory::options()), plain(false, plan, fused_loss_options());
    recorded.counts->fits = 0;
    WithoutMemory::counts = recorded.counts;
    WithoutMemory::calls = 0;
    expect_same_steps(recorded, plain, 5, static_cast<size_t>(microbatches));
    EXPECT_EQ(WithoutMemory::calls, 2) << "it ended in the backward of the second block";
    EXPECT_EQ(recorded.counts->given_up, 1);
    EXPECT_EQ(recorded.counts->runs, 0);
  }
  WithoutMemory::counts = nullptr;
}

TEST(GraphRunner, WithoutMemoryForGraphsGoesOnEagerlyWithTheSameBits) {
  PlanRequest plan = small_plan();
  plan.training.enable_cpu_offload = true;   // blocks are recorded one by one, forward and backward
  for (const int64_t fits : {0, 2, 3, 5}) {  // of three blocks forward, then backward
    Alone recorded(true, plan), plain(false, plan);
    recorded.counts->fits = fits;
    expect_same_steps(recorded, plain, 5);
    EXPECT_EQ(recorded.counts->recorded, fits);
    EXPECT_EQ(recorded.counts->given_up, 1);
  }
}

TEST(MicrobatchGraphs, AreNotForWeightsThatComeAndGo) {
  PlanRequest plan = small_plan();
  plan.training.enable_cpu_offload = true;
  Alone offloaded(true, plan);
  EXPECT_FALSE(offloaded.plan.records_microbatches());
  for (int i = 1; i <= 3; ++i) offloaded.step({offloaded.batch(1)});
  EXPECT_EQ(offloaded.counts->recorded, 2 * 3) << "both directions of three blocks";
}

}  // namespace

}  // namespace titan
