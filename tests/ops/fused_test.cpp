// Operations on the fused kernels against the same operations without them: the kernels' sources, compiled for the
// host, take CPU tensors here. Shapes are those that a model's operations meet, and some that the kernels refuse.
#include <gtest/gtest.h>

#include <tuple>

#include "support/host_kernels.h"
#include "support/operation.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/embedding.h"
#include "titan/ops/fused_kernels.h"
#include "titan/ops/norm.h"
#include "titan/ops/rotary.h"
#include "titan/ops/swiglu.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

/// A context whose operations take the kernels, and what these said.
struct FusedContext : PlainContext {
  std::vector<std::string> said;
  FusedKernels kernels{host_kernels(), at::kCPU, [this](const std::string& what) { said.push_back(what); }};

  FusedContext() {
    context.kernels = &kernels;
    context.loss_kernels = &kernels;
  }
};

double bound(at::ScalarType type) { return 1.5 * tolerance(type); }

class Types : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Fused, Types, ::testing::Values(at::kFloat, at::kBFloat16));

struct NormOutcome {
  NormResult result;
  std::vector<at::Tensor> gradients;
  at::Tensor weight_gradient;
};

NormOutcome run_norm(UnitContext& context, NormType type, std::vector<int64_t> shape, at::ScalarType dtype,
                     bool with_delta, bool accumulate, bool narrow = false) {
  auto weight = live_parameter("norm", normal({shape.back()}, 2, dtype).add_(1.0));
  if (narrow) narrow_gradient(*weight);
  if (accumulate) {
    weight->gradient().copy_(normal({shape.back()}, 8));
    weight->mark_gradient_written();
  }
  const at::Tensor residual = leaf(normal(shape, 3, dtype));
  const at::Tensor delta = with_delta ? leaf(normal(shape, 4, dtype)) : at::Tensor();
  const Norm norm(type, weight.get(), 1e-5, 0);
  NormOutcome outcome;
  outcome.result = norm.forward(residual, delta, context);
  std::vector<at::Tensor> inputs{residual};
  if (with_delta) inputs.push_back(delta);
  outcome.gradients = backward({outcome.result.residual, outcome.result.normed},
                               {normal(shape, 5, dtype), normal(shape, 6, dtype)}, inputs);
  outcome.weight_gradient = weight->gradient();
  return outcome;
}

TEST_P(Types, NormsAndTheirGradientsAreThoseOfPlainOperations) {
  for (NormType type : {NormType::rmsnorm, NormType::fused_rmsnorm}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 7, 24}, {300, 37}, {3, 256}, {1, 1}}) {
      for (bool with_delta : {false, true}) {
        FusedContext fused;
        PlainContext plain;
        const NormOutcome actual = run_norm(fused.context, type, shape, GetParam(), with_delta, with_delta);
        const NormOutcome expected = run_norm(plain.context, type, shape, GetParam(), with_delta, with_delta);
        EXPECT_TRUE(same_bits(actual.result.residual, expected.result.residual));
        EXPECT_TRUE(near(actual.result.normed, expected.result.normed, bound(GetParam())));
        ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
        for (size_t i = 0; i < actual.gradients.size(); ++i)
          EXPECT_TRUE(near(actual.gradients[i], expected.gradients[i], bound(GetParam())));
        EXPECT_TRUE(near(actual.weight_gradient, expected.weight_gradient, bound(at::kFloat)));
        EXPECT_TRUE(fused.said.empty());
      }
    }
  }
}

TEST(FusedNorms, WriteAWeightsGradientInBf16RoundedOnceFromTheirSums) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 7, 24}, {300, 37}, {3, 256}}) {
    FusedContext fused;
    const auto run = [&](bool narrow) {
      return run_norm(fused.context, NormType::rmsnorm, shape, at::kBFloat16, true, false, narrow).weight_gradient;
    };
    EXPECT_TRUE(same_bits(run(true), run(false).to(at::kBFloat16)));
    EXPECT_TRUE(fused.said.empty());
  }
}

/// Of two microbatches, on rank `rank` of three that share the vocabulary.
at::Tensor embedding_gradient(UnitContext& context, at::ScalarType type, int64_t rank, int64_t columns) {
  const int64_t vocab_size = 19;
  const TensorLayout layout({vocab_size, columns}, {{"tp", 3, 0}});
  const Box box = layout.box(std::vector<int64_t>{rank});
  Parameter weight({"tok_embeddings", {vocab_size, columns}, {}});
  weight.place(layout, box, box, true);
  weight.set_weight(normal(box.extent, 1, type));
  weight.set_gradient(at::full(box.extent, NAN, at::TensorOptions(at::kFloat)));
  for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
    const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
    const at::Tensor rows = embedding(anchor, integers({3, 40}, vocab_size, 2 + microbatch), weight, nullptr, context);
    backward({rows}, {normal({120, columns}, 4 + microbatch, type)}, {anchor});
  }
  return weight.gradient();
}

TEST_P(Types, AnEmbeddingsGradientIsThatOfPlainOperationsOnEveryRank) {
  for (int64_t columns : {64, 37, 1}) {
    for (int64_t rank : {0, 1, 2}) {
      FusedContext fused;
      PlainContext plain;
      const at::Tensor actual = embedding_gradient(fused.context, GetParam(), rank, columns);
      EXPECT_TRUE(near(actual, embedding_gradient(plain.context, GetParam(), rank, columns), tolerance(at::kFloat)));
      EXPECT_TRUE(same_bits(actual, embedding_gradient(fused.context, GetParam(), rank, columns)));
    }
  }
}

TEST(Fused, ARowThatNoKernelHoldsIsLeftToPlainOperationsAndSaidOnce) {
  FusedContext fused;
  PlainContext plain;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const NormOutcome actual = run_norm(fused.context, NormType::rmsnorm, {2, 4101}, at::kFloat, true, false);
    const NormOutcome expected = run_norm(plain.context, NormType::rmsnorm, {2, 4101}, at::kFloat, true, false);
    EXPECT_TRUE(same_bits(actual.result.normed, expected.result.normed));
    EXPECT_TRUE(same_bits(actual.gradients[0], expected.gradients[0]));
  }
  ASSERT_EQ(fused.said.size(), 1u);
  EXPECT_EQ(fused.said[0],
            "the fused kernels do not compute an RMS norm of 4101 numbers in Float; plain operations do");
}

TEST(Fused, ALayerNormIsLeftToPlainOperationsAndSaidOnce) {
  FusedContext fused;
  PlainContext plain;
  const NormOutcome actual = run_norm(fused.context, NormType::layernorm, {3, 24}, at::kFloat, true, false);
  const NormOutcome expected = run_norm(plain.context, NormType::layernorm, {3, 24}, at::kFloat, true, false);
  EXPECT_TRUE(same_bits(actual.result.normed, expected.result.normed));
  EXPECT_TRUE(same_bits(actual.gradients[0], expected.gradients[0]));
  EXPECT_EQ(fused.said,
            (std::vector<std::string>{"the fused kernels do not compute a layer norm; plain operations do"}));
}

TEST(Fused, TensorsOfAnotherTypeOrLayoutAreLeftToPlainOperations) {
  FusedContext fused;
  PlainContext plain;
  const NormOutcome actual = run_norm(fused.context, NormType::rmsnorm, {3, 16}, at::kDouble, true, false);
  const NormOutcome expected = run_norm(plain.context, NormType::rmsnorm, {3, 16}, at::kDouble, true, false);
  EXPECT_TRUE(same_bits(actual.gradients[0], expected.gradients[0]));
  const at::Tensor columns = normal({8, 6}, 1).t();
  EXPECT_FALSE(fused.kernels.fit({&columns}));
  EXPECT_TRUE(same_bits(swiglu(columns, columns, fused.context), swiglu(columns, columns, plain.context)));
}

TEST_P(Types, SwigluAndItsGradientsAreThoseOfPlainOperations) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 5, 32}, {7, 13}, {64, 1000}}) {
    std::vector<at::Tensor> results, d_gates, d_ups;
    FusedContext fused;
    PlainContext plain;
    for (UnitContext* context : {&fused.context, &plain.context}) {
      const at::Tensor gate = leaf(normal(shape, 1, GetParam(), 2)), up = leaf(normal(shape, 2, GetParam()));
      const at::Tensor result = swiglu(gate, up, *context);
      const auto gradients = backward({result}, {normal(shape, 3, GetParam())}, {gate, up});
      results.push_back(result);
      d_gates.push_back(gradients[0]);
      d_ups.push_back(gradients[1]);
    }
    EXPECT_TRUE(near(results[0], results[1], bound(GetParam())));
    EXPECT_TRUE(near(d_gates[0], d_gates[1], bound(GetParam())));
    EXPECT_TRUE(near(d_ups[0], d_ups[1], bound(GetParam())));
  }
}

TEST_P(Types, RotationsAndTheirGradientsAreThoseOfPlainOperations) {
  const at::Tensor table = rotary_table(32, 10, 10000, std::nullopt);
  for (const at::Tensor& positions : {at::Tensor(), integers({1, 11}, 32, 4), integers({3, 11}, 32, 5)}) {
    std::vector<std::vector<at::Tensor>> outcomes;
    FusedContext fused;
    PlainContext plain;
    for (UnitContext* context : {&fused.context, &plain.context}) {
      // Products are leaves' copies, because a rotation overwrites them.
      const at::Tensor query = leaf(normal({3, 11, 4, 10}, 1, GetParam()));
      const at::Tensor key = leaf(normal({3, 11, 2, 10}, 2, GetParam()));
      auto [q, k] = rotate(query, key, table, positions, *context);
      const auto gradients =
          backward({q, k}, {normal(q.sizes(), 6, GetParam()), normal(k.sizes(), 7, GetParam())}, {query, key});
      outcomes.push_back({q, k, gradients[0], gradients[1]});
    }
    for (size_t i = 0; i < outcomes[0].size(); ++i)
      EXPECT_TRUE(near(outcomes[0][i], outcomes[1][i], bound(GetParam()))) << i;
  }
}

TEST(Fused, ARotationOverwritesProductsUnlessTheRecorderKeepsThem) {
  const at::Tensor table = rotary_table(32, 8, 10000, std::nullopt);
  RecomputePolicy keeps_query = RecomputePolicy::full();
  keeps_query.set(ResultKind::linear, 0, Keep::keep);
  FusedContext fused;
  UnitContext context(UnitMode::train, keeps_query, fused.sink);
  context.kernels = &fused.kernels;
  context.recorder.start(Recorder::Phase::first_run);
  const at::Tensor query = normal({1, 5, 2, 8}, 1), key = normal({1, 5, 1, 8}, 2);
  const at::Tensor query_before = query.clone(), key_before = key.clone();
  auto [q, k] = rotate(query, key, table, {}, context);
  EXPECT_TRUE(same_bits(query, query_before));
  EXPECT_FALSE(q.is_alias_of(query));
  EXPECT_TRUE(k.is_alias_of(key));
  EXPECT_GT(distance(key, key_before), 0.1);
}

TEST_P(Types, TheLossAndItsGradientsAreThoseOfPlainOperations) {
  for (int64_t vocabulary : {59, 512}) {
    for (int64_t chunks : {1, 3}) {
      std::vector<std::vector<at::Tensor>> outcomes;
      FusedContext fused;
      PlainContext plain;
      for (UnitContext* context : {&fused.context, &plain.context}) {
        const at::Tensor hidden = leaf(normal({2, 9, 16}, 1, GetParam()));
        at::Tensor labels = integers({2, 9}, vocabulary, 2);
        labels.select(1, 3).fill_(kIgnoredLabel);
        auto weight = live_parameter("output", normal({vocabulary, 16}, 3, GetParam(), 0.3));
        CrossEntropyOptions options;
        options.chunks = chunks;
        options.loss_scale = 1.0 / 16;
        const at::Tensor loss = linear_cross_entropy(hidden, labels, *weight, options, *context);
        const at::Tensor d_hidden = backward({loss}, {at::ones({}, at::kDouble)}, {hidden})[0];
        const at::Tensor evaluated = [&] {
          at::NoGradGuard no_graph;
          return linear_cross_entropy(hidden, labels, *weight, options, *context);
        }();
        EXPECT_TRUE(same_bits(loss, evaluated));
        outcomes.push_back({loss, d_hidden, weight->gradient()});
      }
      EXPECT_TRUE(near(outcomes[0][0], outcomes[1][0], tolerance(at::kFloat)));
      EXPECT_TRUE(near(outcomes[0][1], outcomes[1][1], bound(GetParam())));
      EXPECT_TRUE(near(outcomes[0][2], outcomes[1][2], bound(GetParam())));
    }
  }
}

TEST_P(Types, TheFusedLossReadsAScaleThatLiesOnTheDevice) {
  std::vector<std::vector<at::Tensor>> outcomes;
  for (const bool on_device : {false, true}) {
    FusedContext fused;
    const at::Tensor hidden = leaf(normal({2, 9, 16}, 1, GetParam()));
    const at::Tensor labels = integers({2, 9}, 59, 2);
    auto weight = live_parameter("output", normal({59, 16}, 3, GetParam(), 0.3));
    CrossEntropyOptions options;
    const double scale = 1.0 / 13;
    options.loss_scale =
        on_device ? LossScale(NAN, at::full({}, scale, at::TensorOptions(at::kDouble))) : LossScale(scale);
    const at::Tensor loss = linear_cross_entropy(hidden, labels, *weight, options, fused.context);
    outcomes.push_back({loss, backward({loss}, {at::ones({}, at::kDouble)}, {hidden})[0], weight->gradient()});
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(outcomes[1][i], outcomes[0][i])) << i;
}

TEST_P(Types, AmaxesFallOutOfTheKernelsWhereTheyAreWanted) {
  const auto expect_offered = [&](const UnitContext& context, const at::Tensor& tensor) {
    const at::Tensor largest = context.scales.find(tensor);
    ASSERT_TRUE(largest.defined());
    EXPECT_EQ(largest.item<float>(), tensor.abs().max().item<float>());
  };
  for (bool wanted : {false, true}) {
    FusedContext fused;
    fused.context.scales.wanted = wanted;
    const NormOutcome norm = run_norm(fused.context, NormType::rmsnorm, {5, 24}, GetParam(), true, false);
    const at::Tensor gate = leaf(normal({5, 24}, 1, GetParam())), up = leaf(normal({5, 24}, 2, GetParam()));
    const at::Tensor activated = swiglu(gate, up, fused.context);
    const auto gradients = backward({activated}, {normal({5, 24}, 3, GetParam())}, {gate, up});
    const at::Tensor query = leaf(normal({1, 5, 4, 10}, 4, GetParam())),
                     key = leaf(normal({1, 5, 2, 10}, 5, GetParam()));
    const at::Tensor table = rotary_table(32, 10, 10000, std::nullopt);
    auto [q, k] = rotate(query, key, table, {}, fused.context);
    EXPECT_FALSE(fused.context.scales.find(q).defined()) << "nothing multiplies it in float8";
    const auto turned =
        backward({q, k}, {normal(q.sizes(), 6, GetParam()), normal(k.sizes(), 7, GetParam())}, {query, key});
    for (const at::Tensor& tensor :
         {norm.result.normed, norm.gradients[0], activated, gradients[0], gradients[1], turned[0], turned[1]}) {
      if (wanted) {
        expect_offered(fused.context, tensor);
        expect_offered(fused.context, tensor.view({-1}));
        const at::Tensor slot = fused.context.scales.find(tensor),
                         first = fused.context.scales.find(norm.result.normed);
        EXPECT_TRUE(slot.is_alias_of(first)) << "zeros of one fill";
      } else {
        EXPECT_FALSE(fused.context.scales.find(tensor).defined());
      }
    }
  }
}

TEST(Fused, CopiesOfATableShareWhatWasOfferedUntilItsTensorIsGone) {
  ScaleTable scales;
  ScaleTable of_next_unit = scales;
  at::Tensor tensor = normal({4, 4}, 1);
  const at::Tensor kept = normal({4, 4}, 2);
  scales.offer(tensor, at::ones({}));
  scales.offer(kept, at::ones({}));
  EXPECT_TRUE(of_next_unit.find(tensor).defined());
  tensor.reset();
  of_next_unit.forget_gone();
  EXPECT_EQ(scales.size(), 1u);
  EXPECT_TRUE(scales.find(kept).defined());
}

TEST(Fused, SlotsOfAmaxesAreZeroAndGivenOutOnce) {
  AmaxSlots slots;
  const at::Tensor like = normal({4, 4}, 1, at::kBFloat16);
  std::vector<at::Tensor> taken;
  for (int i = 0; i < 50; ++i) {
    taken.push_back(slots.take(1 + i % 3, like));
    EXPECT_TRUE(same_bits(taken.back(), at::zeros({1 + i % 3})));
    taken.back().fill_(1);
  }
  EXPECT_EQ(slots.take(100, like).numel(), 100);
  EXPECT_TRUE(taken[0].storage().is_alias_of(taken[1].storage())) << "many are filled at once";
}

TEST(Fused, ACopyOfSlotsHasItsOwn) {
  AmaxSlots slots;
  const at::Tensor like = normal({4, 4}, 1);
  const at::Tensor first = slots.take(1, like);
  AmaxSlots copy = slots;
  const at::Tensor of_copy = copy.take(1, like);
  EXPECT_FALSE(of_copy.storage().is_alias_of(first.storage()));
}

TEST(Fused, AnAmaxIsNotFoundForALaterTensorAtTheSameAddress) {
  ScaleTable scales;
  at::Tensor tensor = normal({4, 4}, 1);
  scales.offer(tensor, at::ones({}));
  EXPECT_TRUE(scales.find(tensor).defined());
  EXPECT_FALSE(scales.find(tensor.narrow(0, 0, 2)).defined()) << "a part has its own amax";
  // Storages come and go until one is at the same address.
  const void* address = tensor.storage().unsafeGetStorageImpl();
  tensor.reset();
  for (int i = 0; i < 100; ++i) {
    const at::Tensor other = normal({4, 4}, 2);
    if (other.storage().unsafeGetStorageImpl() == address) {
      EXPECT_FALSE(scales.find(other).defined());
    }
  }
}

double declared_bytes(const UnitTrace& trace, UnitTrace::Phase phase) {
  double bytes = 0;
  for (const UnitTrace::Part& part : trace.parts(phase, RecomputePolicy::none())) {
    for (const TracedWork* work : part.work) bytes += work->bytes;
  }
  return bytes;
}

/// The simulation of a step reads traces. Weights, tables and statistics of rows are left out there.
TEST(FusedTraces, DeclareTheBytesThatTheKernelsMove) {
  constexpr int64_t kRows = 8192, kWidth = 4096, kHidden = 14336, kHeads = 32, kKeyHeads = 8, kHeadDim = 128;
  constexpr KernelType kType = KernelType::bf16;
  const TraceShape shape{.length = kRows, .element_size = 2, .on_gpu = true, .fused_kernels = true};
  const auto expect = [](const UnitTrace& trace, const KernelTraffic& forward, const KernelTraffic& backward) {
    const auto moved = [](const KernelTraffic& traffic) { return static_cast<double>(traffic.bytes()); };
    EXPECT_NEAR(declared_bytes(trace, UnitTrace::Phase::forward), moved(forward), 0.03 * moved(forward));
    EXPECT_NEAR(declared_bytes(trace, UnitTrace::Phase::backward), moved(backward), 0.03 * moved(backward));
  };
  const float some = 0;
  for (const bool sums : {false, true}) {
    UnitTrace trace(shape);
    const TracedTensor x = trace.tensor(kRows * kWidth * 2),
                       delta = sums ? trace.tensor(kRows * kWidth * 2) : kNoTensor;
    trace_norm(trace, NormType::rmsnorm, x, delta, kWidth, 0);
    RmsNormForward forward{.type = kType, .rows = kRows, .columns = kWidth};
    forward.delta = sums ? &some : nullptr;
    RmsNormBackward backward{.type = kType, .rows = kRows, .columns = kWidth};
    backward.d_residual = &some;
    expect(trace, traffic(forward), traffic(backward));
  }
  UnitTrace swiglu(shape), rotary(shape);
  trace_swiglu(swiglu, swiglu.tensor(kRows * kHidden * 2), swiglu.tensor(kRows * kHidden * 2));
  expect(swiglu, traffic(SwigluForward{.type = kType, .rows = kRows, .columns = kHidden}),
         traffic(SwigluBackward{.type = kType, .rows = kRows, .columns = kHidden}));
  trace_rotate(rotary, rotary.tensor(kRows * kHeads * kHeadDim * 2), rotary.tensor(kRows * kKeyHeads * kHeadDim * 2));
  RotaryTurn turn;
  turn.type = kType, turn.tokens = turn.length = kRows, turn.head_dim = kHeadDim;
  turn.query_heads = kHeads, turn.key_heads = kKeyHeads, turn.query = turn.key = &some;
  expect(rotary, traffic(turn), traffic(turn));
}

}  // namespace
}  // namespace titan
