// Whole steps on the fused kernels (compiled for the host) against whole steps on plain operations, and in float8:
// which amax values the kernels that write an operand compute, and that results do not depend on who computes them.
#include <gtest/gtest.h>

#include <tuple>

#include "support/host_kernels.h"
#include "support/model.h"
#include "support/replayed_work.h"
#include "support/selections.h"
#include "titan/ops/float8_products.h"
#include "titan/ops/fused_kernels.h"
#include "titan/parallel/unit_runner.h"

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

/// A rounding difference is amplified by three blocks.
double bound(ElementType compute) { return compute == ElementType::bfloat16 ? 3e-2 : 1e-5; }

class FusedSteps : public ::testing::TestWithParam<std::tuple<ElementType, NormType>> {};

TEST_P(FusedSteps, HaveTheLossAndTheGradientsOfPlainOnes) {
  const auto& [compute, norm] = GetParam();
  ModelRequest request = small_request();
  request.model.norm_type = norm;
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
                                            ::testing::Values(NormType::rmsnorm, NormType::fused_rmsnorm,
                                                              NormType::layernorm)));

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

ModelRequest float8_request() {
  ModelRequest request = small_request();
  request.sequence_length = 16;
  request.model.override_sizes = {
      .dim = 64, .n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .multiple_of = 16, .vocab_size = 59};
  return request;
}

PlanRequest float8_plan(Float8Recipe recipe = Float8Recipe::tensorwise, const RecomputeSelection& selection = {}) {
  PlanRequest request = small_plan();
  request.training.mixed_precision_param = ElementType::bfloat16;
  request.float8 = LinearFloat8Section{.recipe_name = recipe};
  request.recompute = selection;
  return request;
}

std::shared_ptr<const FusedKernels> host() { return std::make_shared<FusedKernels>(host_kernels(), at::kCPU); }

ExecutorOptions fused_float8_options() {
  ExecutorOptions options;
  options.kernels = host();
  options.loss_kernels = options.kernels;
  return options;
}

/// Counts the passes over a whole matrix that compute its amax.
Float8Casts counting(Float8Casts casts, int64_t* passes) {
  auto find = casts.amax;
  casts.amax = [find, passes](const at::Tensor& matrix, Float8Extent extent) {
    *passes += extent == Float8Extent::tensor;
    return find(matrix, extent);
  };
  auto find_all = casts.amaxes;
  casts.amaxes = [find_all, passes](const std::vector<at::Tensor>& matrices, const at::Tensor& zeros) {
    *passes += static_cast<int64_t>(matrices.size());
    return find_all(matrices, zeros);
  };
  return casts;
}

/// Products that are given no amax and compute all of them; `offers`: how many they could have been given.
class Unaware : public LinearProducts {
 public:
  Unaware(std::shared_ptr<const LinearProducts> of, std::shared_ptr<size_t> offers)
      : of_(std::move(of)), offers_(std::move(offers)) {}
  Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                  UnitContext& context) const override {
    *offers_ = context.scales.size();
    UnitContext knows_nothing(UnitMode::train, RecomputePolicy::none(), sink_);
    return of_->prepare(input, weights, scale, knows_nothing);
  }
  std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                         UnitContext&) const override {
    UnitContext knows_nothing(UnitMode::train, RecomputePolicy::none(), sink_);
    return of_->prepare_gradients(std::move(gradients), weights, knows_nothing);
  }
  at::Tensor message(const Operand& operand, const Weights& weights) const override {
    return of_->message(operand, weights);
  }
  Operand received(const at::Tensor& rows, const Operand& mine, const Weights& weights) const override {
    return of_->received(rows, mine, weights);
  }
  Operand ready(Operand operand, const Weights& weights) const override {
    return of_->ready(std::move(operand), weights);
  }
  at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const override {
    return of_->forward(x, weight, columns);
  }
  void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                      at::Tensor& dx) const override {
    of_->input_gradient(dy, weight, columns, dx);
  }
  bool keeps_float8(const Weights& weights) const override { return of_->keeps_float8(weights); }
  Operand for_weight_gradients(const Operand& x, const Weights& weights) const override {
    return of_->for_weight_gradients(x, weights);
  }
  void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const override {
    of_->weight_gradient(dy, x, weight);
  }

 private:
  std::shared_ptr<const LinearProducts> of_;
  std::shared_ptr<size_t> offers_;
  mutable ImmediateSink sink_;
};

struct Float8Model {
  /// The casts of the products are counted, those of the weights' scales are not.
  explicit Float8Model(const Float8Casts& casts, const PlanRequest& plan = float8_plan(),
                       const ExecutorOptions& options = fused_float8_options(), bool unaware = false,
                       const SmallModel::MakeRunner& runner = SmallModel::eager)
      : small(float8_request(), plan, options, SmallModel::resident,
              products(counting(casts, passes.get()), recipe_of(*plan.float8), unaware), runner) {}

  std::shared_ptr<const LinearProducts> products(Float8Casts casts, Float8Recipe recipe, bool unaware) const {
    Float8Options options{.recipe = recipe};
    options.casts = std::move(casts);
    auto made = make_float8_products(std::move(options));
    return unaware ? std::make_shared<Unaware>(made, offers) : made;
  }

  std::shared_ptr<int64_t> passes = std::make_shared<int64_t>(0);
  std::shared_ptr<size_t> offers = std::make_shared<size_t>(0);
  SmallModel small;
};

constexpr int64_t kBlocks = 3;

TEST(FusedFloat8Steps, LookOnlyForAmaxesThatNoKernelOfThisProjectCouldFind) {
  Float8Model fused(make_fused_float8_casts(host()));
  const BatchContext batch = fused.small.batch();
  forward(*fused.small.executor, batch, 0);
  EXPECT_EQ(*fused.passes, kBlocks) << "what attention wrote";
  backward(*fused.small.executor, batch, 0, /*is_last=*/true);
  EXPECT_EQ(*fused.passes, 2 * kBlocks) << "and its gradient of the values";
}

TEST(FusedFloat8Steps, OfAValidationForgetTheAmaxesOfItsLastBatch) {
  Float8Model fused(make_fused_float8_casts(host()), float8_plan(), fused_float8_options(), /*unaware=*/true);
  const BatchContext batch = fused.small.batch();
  fused.small.executor->infer(batch, UnitMode::evaluate);
  const size_t offers = *fused.offers;
  EXPECT_GT(offers, 0u);
  for (int i = 0; i < 3; ++i) fused.small.executor->infer(batch, UnitMode::evaluate);
  EXPECT_EQ(*fused.offers, offers);
}

TEST(FusedFloat8Steps, WithoutTheKernelsLookForTheAmaxOfEveryOperand) {
  Float8Model plain(make_aten_float8_casts(), float8_plan(), {});
  const BatchContext batch = plain.small.batch();
  forward(*plain.small.executor, batch, 0);
  EXPECT_EQ(*plain.passes, 4 * kBlocks) << "inputs of q, k and v, of the output, of gate and up, of down";
  backward(*plain.small.executor, batch, 0, /*is_last=*/true);
  EXPECT_EQ(*plain.passes, (4 + 7) * kBlocks) << "a gradient of every layer";
}

TEST(FusedFloat8Steps, AreTheBitsOfPlainCastsThatLookForEveryAmax) {
  for (const Float8Recipe recipe :
       {Float8Recipe::tensorwise, Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp}) {
    Float8Model fused(make_fused_float8_casts(host()), float8_plan(recipe));
    Float8Model plain(make_aten_float8_casts(), float8_plan(recipe), fused_float8_options(), /*unaware=*/true);
    for (const int64_t microbatch : {0, 1}) {
      const BatchContext batch = fused.small.batch(static_cast<uint64_t>(5 + microbatch));
      std::vector<at::Tensor> losses;
      for (SmallModel* model : {&fused.small, &plain.small}) {
        losses.push_back(forward(*model->executor, batch, microbatch));
        backward(*model->executor, batch, microbatch, microbatch == 1);
      }
      EXPECT_TRUE(same_bits(losses[0], losses[1]));
    }
    expect_same_gradients(fused.small.gradients(), plain.small.gradients());
    if (recipe == Float8Recipe::tensorwise) {
      EXPECT_LT(*fused.passes, *plain.passes);
    }
  }
}

std::unique_ptr<UnitRunner> in_graphs(const SmallModel& model) {
  std::vector<const Unit*> blocks;
  for (const UnitPlan& unit : model.plan.units) {
    if (unit.role == UnitRole::block) blocks.push_back(model.model->chain()[unit.chain_index].get());
  }
  return std::make_unique<GraphRunner>(std::move(blocks),
                                       std::make_unique<ReplayedWork>(std::make_shared<ReplayCounts>()));
}

TEST(FusedFloat8Steps, InGraphsHandAmaxesOnFromBlockToBlockAsEagerOnesDo) {
  for (const auto mode : {RecomputeSelection::Mode::none, RecomputeSelection::Mode::full}) {
    const PlanRequest plan = float8_plan(Float8Recipe::tensorwise, selection(mode));
    Float8Model eager(make_fused_float8_casts(host()), plan);
    Float8Model recorded(make_fused_float8_casts(host()), plan, fused_float8_options(), /*unaware=*/false, in_graphs);
    for (uint64_t step = 1; step <= 6; ++step) {
      const BatchContext batch = eager.small.batch(step);
      for (Float8Model* model : {&eager, &recorded}) {
        *model->passes = 0;
        model->small.executor->zero_gradient();
      }
      EXPECT_TRUE(same_bits(recorded.small.run(batch), eager.small.run(batch))) << step;
      EXPECT_EQ(*recorded.passes, *eager.passes) << step;
      expect_same_gradients(recorded.small.gradients(), eager.small.gradients());
      for (Float8Model* model : {&eager, &recorded}) {
        for (const auto& parameter : model->small.model->parameter_handles()) parameter->master.mul_(1.01);
        model->small.executor->weights_changed();
      }
    }
  }
}

TEST(FusedFloat8Steps, AreTheSameBitsWhateverIsRecomputed) {
  Float8Model kept(make_fused_float8_casts(host()));
  const BatchContext batch = kept.small.batch();
  const at::Tensor loss = kept.small.run(batch);
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    Float8Model checked(make_fused_float8_casts(host()), float8_plan(Float8Recipe::tensorwise, named.selection));
    EXPECT_TRUE(same_bits(checked.small.run(batch), loss));
    expect_same_gradients(checked.small.gradients(), kept.small.gradients());
  }
}

}  // namespace

}  // namespace titan
