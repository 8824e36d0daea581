// Whole steps on the fused kernels (compiled for the host) against whole steps on plain operations.
#include <gtest/gtest.h>

#include <tuple>

#include "support/model.h"
#include "support/selections.h"
#include "titan/ops/fused_kernels.h"

namespace titan {
namespace {

using Mode = RecomputeSelection::Mode;

ExecutorOptions fused_options(bool model = true, bool loss = true) {
  const auto kernels = std::make_shared<FusedKernels>(host_kernels(), at::kCPU);
  ExecutorOptions options;
  options.check_kept_tensors = true;
  if (model) options.kernels = kernels;
  if (loss) options.loss_kernels = kernels;
  return options;
}

/// Rounding that differs in one place goes through three blocks.
double bound(ElementType compute) { return compute == ElementType::bfloat16 ? 3e-2 : 1e-5; }

class FusedSteps : public ::testing::TestWithParam<std::tuple<ElementType, std::string>> {};

TEST_P(FusedSteps, HaveTheLossAndTheGradientsOfPlainOnes) {
  const auto& [compute, norm] = GetParam();
  ModelRequest request = small_request();
  request.norm_type = norm;
  SmallModel plain(request, plan_in(compute)), fused(request, plan_in(compute), fused_options());
  const BatchContext batch = plain.batch();
  EXPECT_TRUE(near(fused.run(batch), plain.run(batch), bound(compute) / 10));
  const auto expected = plain.gradients();
  for (const auto& [name, gradient] : fused.gradients())
    EXPECT_TRUE(near(gradient, expected.at(name), bound(compute))) << name;
  EXPECT_TRUE(near(fused.executor->infer(batch, UnitMode::logits), plain.executor->infer(batch, UnitMode::logits),
                   bound(compute)));
}

INSTANTIATE_TEST_SUITE_P(Executor, FusedSteps,
                         ::testing::Combine(::testing::Values(ElementType::float32, ElementType::bfloat16),
                                            ::testing::Values("rmsnorm", "fused_rmsnorm", "layernorm")));

TEST(FusedSteps, AreTheSameBitsWhateverIsRecomputed) {
  SmallModel plain(small_request(), plan_in(ElementType::bfloat16), fused_options());
  const BatchContext batch = plain.batch();
  const at::Tensor loss = plain.run(batch);
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    SmallModel checked(small_request(), plan_in(ElementType::bfloat16, named.selection), fused_options());
    EXPECT_TRUE(same_bits(checked.run(batch), loss));
    expect_same_gradients(checked.gradients(), plain.gradients());
  }
}

TEST(FusedSteps, TakeTheKernelsOfTheComponentsThatAreChosen) {
  SmallModel plain(small_request()), both(small_request(), small_plan(), fused_options());
  SmallModel model(small_request(), small_plan(), fused_options(true, false));
  SmallModel loss(small_request(), small_plan(), fused_options(false, true));
  const BatchContext batch = plain.batch();
  // With the loss alone the hidden states are plain ones, and with the model alone the loss of its hidden states is.
  for (SmallModel* one : {&plain, &both, &model, &loss}) one->run(batch);
  const std::string name = "output.weight";
  EXPECT_FALSE(same_bits(loss.gradients().at(name), plain.gradients().at(name)));
  EXPECT_FALSE(same_bits(model.gradients().at(name), plain.gradients().at(name)));
  EXPECT_FALSE(same_bits(model.gradients().at(name), both.gradients().at(name)));
  EXPECT_TRUE(near(both.gradients().at(name), plain.gradients().at(name), bound(ElementType::float32)));
}

TEST(FusedSteps, AccumulateOverMicrobatchesLikePlainOnes) {
  SmallModel plain(small_request()), fused(small_request(), small_plan(), fused_options());
  for (SmallModel* one : {&plain, &fused}) {
    for (int64_t microbatch : {0, 1}) {
      const BatchContext batch = one->batch(static_cast<uint64_t>(5 + microbatch));
      forward(*one->executor, batch, microbatch);
      backward(*one->executor, batch, microbatch, microbatch == 1);
    }
  }
  const auto expected = plain.gradients();
  for (const auto& [name, gradient] : fused.gradients())
    EXPECT_TRUE(near(gradient, expected.at(name), bound(ElementType::float32))) << name;
}

}  // namespace
}  // namespace titan
