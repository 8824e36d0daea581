// The executor as a whole: losses and gradients against plain torch, with and without recompute, accumulated and
// deferred.
#include <gtest/gtest.h>

#include <tuple>

#include "support/model.h"
#include "support/plain_llama.h"
#include "support/selections.h"
#include "titan/base/error.h"

namespace titan {
namespace {

using Mode = RecomputeSelection::Mode;

PlanRequest plan_with(const RecomputeSelection& selection, ElementType compute = ElementType::float32) {
  PlanRequest request = small_plan();
  request.recompute = selection;
  request.training.mixed_precision_param = compute;
  return request;
}

class Recompute : public ::testing::TestWithParam<std::tuple<NamedSelection, ElementType>> {};

TEST_P(Recompute, GivesTheLossAndGradientsOfNoRecomputeBitForBit) {
  const auto& [named, compute] = GetParam();
  for (int64_t kv_heads : {2, 4}) {
    SmallModel plain(small_request("llama3", kv_heads), plan_with({}, compute));
    SmallModel checked(small_request("llama3", kv_heads), plan_with(named.selection, compute),
                       {.check_kept_tensors = true});
    const BatchContext batch = plain.batch();
    EXPECT_TRUE(same_bits(checked.run(batch), plain.run(batch)));
    expect_same_gradients(checked.gradients(), plain.gradients());
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, Recompute,
                         ::testing::Combine(::testing::ValuesIn(all_selections()),
                                            ::testing::Values(ElementType::float32, ElementType::bfloat16)));

TEST(Recompute, HoldsForEveryFamily) {
  for (const char* family : {"llama3_2", "qwen2", "qwen3"}) {
    for (const NamedSelection& named : all_selections()) {
      SCOPED_TRACE(fmt::format("{}, {}", family, named.name));
      SmallModel plain(small_request(family));
      SmallModel checked(small_request(family), plan_with(named.selection), {.check_kept_tensors = true});
      const BatchContext batch = plain.batch();
      EXPECT_TRUE(same_bits(checked.run(batch), plain.run(batch)));
      expect_same_gradients(checked.gradients(), plain.gradients());
    }
  }
}

TEST(Recompute, HoldsForEveryNormTypeAndForDocumentMasks) {
  for (const auto& [norm, word] : kChoiceWords<NormType>) {
    for (const NamedSelection& named : all_selections()) {
      SCOPED_TRACE(std::string(word) + ", " + named.name);
      ModelRequest request = small_request();
      request.model.norm_type = norm;
      request.model.flavor = "debugmodel_varlen_attn";
      SmallModel plain(request);
      SmallModel checked(request, plan_with(named.selection), {.check_kept_tensors = true});
      BatchContext batch = plain.batch();
      batch.bounds.document_starts = {{0, 4, 5}, {0}};
      batch.positions = at::arange(13, at::kLong).repeat({2, 1});
      batch.positions[0].narrow(0, 4, 9).copy_(at::tensor({0, 0, 1, 2, 3, 4, 5, 6, 7}, at::kLong));
      EXPECT_TRUE(same_bits(checked.run(batch), plain.run(batch)));
      expect_same_gradients(checked.gradients(), plain.gradients());
    }
  }
}

TEST(Recompute, GivesTheSameBitsOnTwoThreads) {
  const ThreadCount two(2);
  ModelRequest request = small_request();
  request.sequence_length = 128;
  request.model.override_sizes = {
      .dim = 128, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .multiple_of = 8, .vocab_size = 301};
  SmallModel plain(request);
  const BatchContext batch = plain.batch();
  const at::Tensor loss = plain.run(batch);
  for (Mode mode : {Mode::full, Mode::selective_operations}) {
    SmallModel checked(request, plan_with(selection(mode)));
    EXPECT_TRUE(same_bits(checked.run(batch), loss));
    expect_same_gradients(checked.gradients(), plain.gradients());
  }
}

struct Variant {
  std::string name;
  int64_t kv_heads;
  NormType norm = NormType::rmsnorm;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name << ", " << word_of(variant.norm); }

class AgainstPlainTorch : public ::testing::TestWithParam<Variant> {
 protected:
  /// The same weights, as float64 leaves.
  static PlainLlama reference(const SmallModel& small) {
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : small.model->parameter_handles()) {
      weights[parameter->name()] = leaf(as_double(parameter->master));
    }
    return {llama_arguments(small.request), weights};
  }
  SmallModel make() const {
    ModelRequest request = small_request(GetParam().name, GetParam().kv_heads);
    request.model.norm_type = GetParam().norm;
    return SmallModel(request);
  }
};

TEST_P(AgainstPlainTorch, LossAndEveryGradientAgree) {
  SmallModel small = make();
  const BatchContext batch = small.batch();
  const PlainLlama plain = reference(small);
  const at::Tensor loss = small.run(batch);
  const at::Tensor expected = plain.loss(batch.tokens, batch.labels, batch.loss_scale);
  EXPECT_TRUE(near(loss, expected, 1e-6));
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (const auto& [name, weight] : plain.weights) {
    names.push_back(name);
    leaves.push_back(weight);
  }
  const auto wanted = backward({expected}, {at::ones({}, at::kDouble)}, leaves);
  const auto got = small.gradients();
  ASSERT_EQ(got.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_TRUE(near(got.at(names[i]), wanted[i], 5e-6)) << names[i];
}

TEST_P(AgainstPlainTorch, LogitsAgree) {
  SmallModel small = make();
  const BatchContext batch = small.batch();
  const at::Tensor expected = reference(small).logits(batch.tokens).detach();
  EXPECT_TRUE(near(small.executor->infer(batch, UnitMode::logits), expected, 5e-6));
}

INSTANTIATE_TEST_SUITE_P(Executor, AgainstPlainTorch,
                         ::testing::Values(Variant{"llama2", 4}, Variant{"llama3", 2}, Variant{"llama3_1", 1},
                                           Variant{"llama3_2", 2}, Variant{"llama3_2", 4},
                                           Variant{"llama3", 2, NormType::fused_rmsnorm},
                                           Variant{"llama3", 2, NormType::layernorm},
                                           Variant{"llama3", 2, NormType::np_layernorm}));

TEST(Executor, Bf16ComputeStaysNearTheFp32GradientsAndKeepsThemInFp32) {
  SmallModel wide(small_request());
  SmallModel narrow(small_request(), plan_with({}, ElementType::bfloat16));
  const BatchContext batch = wide.batch();
  EXPECT_TRUE(near(narrow.run(batch), wide.run(batch), 1e-2));
  const auto expected = wide.gradients();
  for (const auto& [name, gradient] : narrow.gradients()) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(near(gradient, expected.at(name), 5e-2)) << name;
  }
}

TEST(Executor, MicrobatchesAddUpToOneLargeBatch) {
  PlanRequest four = plain_plan();
  four.samples = 4;
  SmallModel whole(small_request(), four);
  SmallModel pieces(small_request());
  const BatchContext batch = whole.batch();
  const double expected = whole.run(batch).item<double>();
  double loss = 0;
  for (int64_t m = 0; m < 2; ++m) {
    BatchContext piece = batch;
    piece.tokens = batch.tokens.narrow(0, 2 * m, 2);
    piece.labels = batch.labels.narrow(0, 2 * m, 2);
    loss += forward(*pieces.executor, piece, m).item<double>();
    backward(*pieces.executor, piece, m, /*is_last=*/m == 1);
  }
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
  const auto wanted = whole.gradients();
  for (const auto& [name, gradient] : pieces.gradients()) EXPECT_TRUE(near(gradient, wanted.at(name), 1e-5)) << name;
}

TEST(Executor, MicrobatchesInFlightTogetherGiveTheSameBitsAsOneAfterTheOther) {
  for (Mode mode : {Mode::none, Mode::selective_operations}) {
    SmallModel first(small_request(), plan_with(selection(mode)));
    SmallModel second(small_request(), plan_with(selection(mode)));
    const std::vector<BatchContext> batches{first.batch(1), first.batch(2), first.batch(3)};
    for (int64_t m = 0; m < 3; ++m) {
      forward(*first.executor, batches[static_cast<size_t>(m)], m);
      backward(*first.executor, batches[static_cast<size_t>(m)], m, m == 2);
    }
    for (int64_t m = 0; m < 3; ++m) forward(*second.executor, batches[static_cast<size_t>(m)], m);
    for (int64_t m = 0; m < 3; ++m) backward(*second.executor, batches[static_cast<size_t>(m)], m, m == 2);
    // The head writes its gradient in forward: the order of its additions is the same in both.
    expect_same_gradients(second.gradients(), first.gradients());
  }
}

TEST(Executor, ASecondStepDoesNotSeeTheGradientsOfTheFirst) {
  SmallModel small(small_request());
  const BatchContext batch = small.batch();
  small.run(batch);
  const auto once = small.gradients();
  small.executor->zero_gradient();
  for (const auto& parameter : small.model->parameter_handles()) EXPECT_FALSE(parameter->gradient_shard.defined());
  small.run(batch);
  expect_same_gradients(small.gradients(), once);
}

TEST(Executor, WeightsThatWereWrittenAreSeenAfterTheChangeIsAnnounced) {
  for (ElementType compute : {ElementType::float32, ElementType::bfloat16}) {
    SmallModel small(small_request(), plan_with({}, compute));
    const BatchContext batch = small.batch();
    const at::Tensor before = small.executor->infer(batch, UnitMode::logits);
    small.model->parameter("output.weight").master.zero_();
    small.executor->weights_changed();
    EXPECT_EQ(small.executor->infer(batch, UnitMode::logits).abs().sum().item<double>(), 0.0);
    EXPECT_GT(before.abs().sum().item<double>(), 0.0);
  }
}

TEST(Executor, DeferredWeightGradientsWaitForTheirRunAndGiveTheSameBits) {
  for (Mode mode : {Mode::none, Mode::full, Mode::selective_operations}) {
    SmallModel now(small_request(), plan_with(selection(mode)));
    PlanRequest split = plan_with(selection(mode));
    split.pipeline.emplace();
    split.pipeline->stages = {{0, 0, 5}};
    split.pipeline->rank_of_stage = {0};
    split.pipeline->splits_backward = true;
    split.pipeline->actions = {{ActionKind::forward, 0, 0},
                               {ActionKind::input_gradient, 0, 0},
                               {ActionKind::weight_gradient, 0, 0},
                               {ActionKind::reduce_grad, 0}};
    SmallModel later(small_request(), split);
    const BatchContext batch = now.batch();
    now.run(batch);
    StepWork none;
    auto run = [&](const std::vector<Action>& table, bool is_last) {
      later.executor->run(expand(later.plan, table, later.executor->state(), is_last), {&batch, 1}, none);
    };
    run({{ActionKind::forward, 0, 0}, {ActionKind::input_gradient, 0, 0}}, /*is_last=*/false);
    for (const auto& parameter : later.model->parameter_handles()) {
      if (!parameter->name().starts_with("layers.") || parameter->name().ends_with("norm.weight")) continue;
      EXPECT_FALSE(parameter->gradient_written()) << parameter->name();
    }
    for (const auto& parameter : later.model->parameter_handles()) {
      EXPECT_FALSE(parameter->gradient_shard.defined()) << parameter->name();
    }
    run({{ActionKind::weight_gradient, 0, 0}, {ActionKind::reduce_grad, 0}}, /*is_last=*/true);
    for (const auto& parameter : later.model->parameter_handles()) {
      ASSERT_TRUE(parameter->gradient_shard.defined()) << parameter->name();
      EXPECT_TRUE(same_bits(parameter->gradient_shard, now.model->parameter(parameter->name()).gradient_shard))
          << parameter->name();
    }
  }
}

TEST(Executor, EvaluationGivesTheTrainingLossAndTouchesNoGradient) {
  SmallModel small(small_request(), plan_with(selection(Mode::full)));
  const BatchContext batch = small.batch();
  const at::Tensor evaluated = small.executor->infer(batch, UnitMode::evaluate);
  for (const auto& parameter : small.model->parameter_handles()) EXPECT_FALSE(parameter->gradient_written());
  EXPECT_TRUE(same_bits(evaluated, small.run(batch)));
}

TEST(Executor, InferenceBetweenForwardAndBackwardDisturbsNothing) {
  SmallModel plain(small_request());
  SmallModel disturbed(small_request());
  const BatchContext batch = plain.batch();
  plain.run(batch);
  forward(*disturbed.executor, batch, 0);
  disturbed.executor->infer(disturbed.batch(99), UnitMode::evaluate);
  backward(*disturbed.executor, batch, 0, true);
  expect_same_gradients(disturbed.gradients(), plain.gradients());
}

TEST(Executor, TakesAProgramOnlyFromTheStateThatItWasMadeFor) {
  SmallModel small(small_request());
  const BatchContext batch = small.batch();
  StepWork none;
  const Program first = small.executor->program(ProgramKind::pass);
  small.executor->run(first, {&batch, 1}, none);
  EXPECT_THROW(small.executor->run(first, {&batch, 1}, none), InvariantError) << "gradients are open by now";
  const Program* later = &small.executor->program(ProgramKind::pass);
  small.executor->run(*later, {&batch, 1}, none);
  EXPECT_EQ(&small.executor->program(ProgramKind::pass), later) << "a body that repeats is made once";
}

}  // namespace
}  // namespace titan
