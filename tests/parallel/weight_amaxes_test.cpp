// Amaxes of float8 weights that the optimizer has found: which scales follow from them, and when weights are read for
// their amaxes.
#include <gtest/gtest.h>

#include <tuple>

#include "support/model.h"
#include "titan/ops/float8_products.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

constexpr int64_t kScaledBlocks = 2, kScaledMatrices = 7;

/// Sides of the matrices are multiples of 16, also of what each of two tensor-parallel ranks holds.
ModelRequest model_with_scales() {
  ModelRequest request = small_request();
  request.sequence_length = 16;
  request.model.override_sizes = {
      .dim = 64, .n_layers = kScaledBlocks, .n_heads = 4, .n_kv_heads = 2, .multiple_of = 32, .vocab_size = 59};
  return request;
}

PlanRequest plan_with_scales(ElementType master, ElementType compute) {
  PlanRequest request = small_plan();
  request.training.dtype = master;
  request.training.mixed_precision_param = compute;
  request.float8 = LinearFloat8Section{};
  return request;
}

/// Plain casts; counts the weights that are read for their amaxes.
Float8Casts counting_reads(int64_t* reads) {
  Float8Casts casts = make_aten_float8_casts();
  casts.amaxes = [find = casts.amaxes, reads](const std::vector<at::Tensor>& matrices, const at::Tensor& zeros) {
    *reads += std::ssize(matrices);
    return find(matrices, zeros);
  };
  return casts;
}

void expect_the_scale_of(const at::Tensor& amax, const Float8Scale& scale) {
  const Float8Scales expected = make_aten_float8_casts().scales({amax}, Float8Format::e4m3, /*power_of_two=*/false);
  EXPECT_TRUE(same_bits(scale.value, expected[0].value));
  EXPECT_TRUE(same_bits(scale.inverse, expected[0].inverse));
}

/// A model on one device, and steps of an optimizer that finds amaxes.
struct ScaledModel {
  ScaledModel(ElementType master, ElementType compute)
      : small(
            model_with_scales(), plan_with_scales(master, compute), {},
            [this](const Plan& plan, size_t group, std::vector<Parameter*> members) {
              return std::make_unique<WeightStore>(plan.groups[group], std::move(members), plan.request, no_offload(),
                                                   nullptr, MeshCommunicators{}, counting_reads(&reads));
            },
            make_float8_products({})) {}

  void look() { small.executor->infer(small.batch(), UnitMode::evaluate); }

  std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& parameter : small.model->parameter_handles()) all.push_back(parameter.get());
    return all;
  }

  /// What a kernel writes, or leaves alone if the step is skipped, which the host does not know.
  void step(double factor, bool is_skipped = false) {
    for (Parameter* parameter : parameters()) {
      if (!is_skipped) write(*parameter, factor);
      parameter->compute_copy_written = !parameter->compute_copy.is_same(parameter->master);
      parameter->amax_written = parameter->amax.defined();
    }
    small.executor->weights_changed();
  }
  static void write(Parameter& parameter, double factor) {
    parameter.master.mul_(factor);
    if (!parameter.compute_copy.is_same(parameter.master)) parameter.compute_copy.copy_(parameter.master);
    if (parameter.amax.defined()) parameter.amax.copy_(parameter.compute_copy.abs().amax());
  }

  void expect_scales_of_the_weights() const {
    int64_t scaled = 0;
    for (const Parameter* parameter : parameters()) {
      if (!parameter->in_float8()) continue;
      ++scaled;
      SCOPED_TRACE(parameter->name());
      expect_the_scale_of(parameter->weight().abs().amax().to(at::kFloat), parameter->float8_scale);
    }
    EXPECT_EQ(scaled, kScaledBlocks * kScaledMatrices);
  }

  int64_t reads = 0;
  SmallModel small;
};

class WeightAmaxes : public ::testing::TestWithParam<std::tuple<ElementType, ElementType>> {
 protected:
  ScaledModel model{std::get<0>(GetParam()), std::get<1>(GetParam())};
  static constexpr int64_t kAll = kScaledBlocks * kScaledMatrices;
};

TEST_P(WeightAmaxes, ThatAreFoundInStepsGiveTheScalesOfWeightsThatAreRead) {
  model.look();
  model.expect_scales_of_the_weights();
  EXPECT_EQ(model.reads, kAll) << "before the first step";
  for (const double factor : {1.37, 0.21, 3.0}) {
    model.step(factor);
    model.look();
    model.expect_scales_of_the_weights();
  }
  EXPECT_EQ(model.reads, kAll);
}

TEST_P(WeightAmaxes, StayValidThroughSkippedSteps) {
  model.look();
  for (const bool is_skipped : {true, false, true, true}) {
    model.step(1.37, is_skipped);
    model.look();
    model.expect_scales_of_the_weights();
  }
  EXPECT_EQ(model.reads, kAll);
}

TEST_P(WeightAmaxes, AreFoundByReadingOnceOtherThanAnOptimizerChangedTheWeights) {
  model.look();
  model.step(1.37);
  model.look();
  for (Parameter* parameter : model.parameters()) parameter->master.mul_(0.4);  // a checkpoint was loaded
  model.small.executor->weights_changed();
  model.look();
  model.expect_scales_of_the_weights();
  EXPECT_EQ(model.reads, 2 * kAll);
  for (const bool is_skipped : {true, false}) {
    model.step(1.2, is_skipped);
    model.look();
    model.expect_scales_of_the_weights();
  }
  EXPECT_EQ(model.reads, 2 * kAll);
}

TEST_P(WeightAmaxes, OfWeightsThatWereLoadedAreNotKnownAfterASkippedStep) {
  model.look();
  for (Parameter* parameter : model.parameters()) parameter->master.mul_(0.4);
  model.small.executor->weights_changed();
  model.step(1.37, /*is_skipped=*/true);  // the amaxes of the loaded weights are not known yet
  model.look();
  model.expect_scales_of_the_weights();
  EXPECT_EQ(model.reads, 2 * kAll);
}

TEST_P(WeightAmaxes, AreFoundByReadingTheGroupOfWhichOneIsNotKnown) {
  model.look();
  Parameter& without = model.small.model->parameter("layers.1.attention.wk.weight");
  for (Parameter* parameter : model.parameters()) {
    ScaledModel::write(*parameter, 1.37);
    parameter->amax_written = parameter->amax.defined() && parameter != &without;
  }
  without.amax.zero_();
  model.small.executor->weights_changed();
  model.look();
  model.expect_scales_of_the_weights();
  EXPECT_EQ(model.reads, kAll + kScaledMatrices);
}

INSTANTIATE_TEST_SUITE_P(WeightStore, WeightAmaxes,
                         ::testing::Values(std::tuple(ElementType::float32, ElementType::bfloat16),
                                           std::tuple(ElementType::bfloat16, ElementType::bfloat16),
                                           std::tuple(ElementType::float32, ElementType::float32)));

TEST(WeightAmaxes, AreWantedOfTensorwiseFloat8WeightsAlone) {
  PlanRequest rowwise = plan_with_scales(ElementType::float32, ElementType::bfloat16);
  rowwise.float8->recipe_name = Float8Recipe::rowwise;
  PlanRequest dense = rowwise;
  dense.float8.reset();
  for (const PlanRequest& plan : {rowwise, dense}) {
    const SmallModel small(
        model_with_scales(), plan, {}, SmallModel::resident,
        plan.float8 ? make_float8_products({.recipe = Float8Recipe::rowwise}) : std::make_shared<DenseProducts>());
    for (const auto& parameter : small.model->parameter_handles()) EXPECT_FALSE(parameter->amax.defined());
  }
  const ScaledModel model(ElementType::float32, ElementType::bfloat16);
  for (const Parameter* parameter : model.parameters()) EXPECT_EQ(parameter->amax.defined(), parameter->in_float8());
}

/// Rank 0 of two. The other one's amaxes are `other`; it sends nothing else.
class LargerElsewhere : public Communicator {
 public:
  LargerElsewhere(std::string name, double other) : Communicator(std::move(name), 0, 2), other_(other) {}
  std::string_view transport() const override { return "nothing"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  struct Done : PendingCollective {
    void wait() override {}
  };
  Pending start_all_gather(Tensors, Tensors) override { return std::make_unique<Done>(); }
  Pending start_reduce_scatter(Tensors, Tensors) override { return std::make_unique<Done>(); }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    EXPECT_EQ(reduction, Reduction::max);
    for (at::Tensor& tensor : tensors) tensor.clamp_min_(other_);
    return std::make_unique<Done>();
  }
  Pending start_transfer(std::vector<Message>, std::vector<Message>) override { return std::make_unique<Done>(); }

 private:
  double other_;
};

/// The first block's weights on one of two ranks.
struct OneOfTwo {
  OneOfTwo(PlanRequest request, const ParallelDegrees& degrees) {
    const bool is_sharded = degrees.dp_shard == 2;
    const ModelRequest model_request = model_with_scales();
    request.sequence_length = model_request.sequence_length;
    request.place = {DeviceMesh(degrees, 2), 0};
    plan = make_plan(describe_model(model_request), request);
    model = find_model_family(model_request.model.name)->build(model_request, {make_float8_products({})});
    const auto offload = no_offload();
    MeshCommunicators communicators;
    (is_sharded ? communicators.gather : communicators.tensor) = std::make_shared<LargerElsewhere>("other", 0.5);
    communicators.scatter = communicators.gather;
    for (const ParameterPlan& planned : plan.groups[1].parameters) {
      members.push_back(&model->parameter(planned.spec.name));
    }
    if (is_sharded) slots = std::make_shared<SlotPool>(plan, offload->device());
    store = std::make_unique<WeightStore>(plan.groups[1], members, plan.request, offload, slots, communicators,
                                          counting_reads(&reads));
    for (Parameter* parameter : members) initialise(*parameter, parameter->shard_box(), /*seed=*/11);
  }

  void expect_scales(double amax) const {
    for (const Parameter* parameter : members) {
      if (parameter->in_float8()) expect_the_scale_of(at::full({}, amax, at::kFloat), parameter->float8_scale);
    }
  }

  /// Of a step that leaves `amax` as every weight's.
  void step(double amax) const {
    for (Parameter* parameter : members) {
      if (!parameter->amax.defined()) continue;
      parameter->amax.fill_(amax);
      parameter->amax_written = true;
    }
    store->weights_changed();
  }

  Plan plan;
  std::unique_ptr<Model> model;
  std::vector<Parameter*> members;
  std::shared_ptr<SlotPool> slots;
  int64_t reads = 0;
  std::unique_ptr<WeightStore> store;
};

void expect_scales_over_ranks(OneOfTwo& one, const std::function<void()>& scale) {
  scale();
  one.expect_scales(0.5);  // no initial weight is as large
  one.step(2.0);
  scale();
  one.expect_scales(2.0);
  one.step(0.25);
  scale();
  one.expect_scales(0.5);
  for (const Parameter* parameter : one.members) {
    if (!parameter->in_float8()) continue;
    EXPECT_EQ(parameter->amax.item<float>(), 0.25F) << "of this rank alone";
  }
  EXPECT_EQ(one.reads, kScaledMatrices);
}

TEST(WeightAmaxes, OfShardsThatTravelInFloat8AreReducedOverTheRanks) {
  for (const ElementType master : {ElementType::float32, ElementType::bfloat16}) {
    PlanRequest request = plan_with_scales(master, ElementType::bfloat16);
    request.float8->enable_fsdp_float8_all_gather = true;
    for (const bool is_precomputed : {false, true}) {
      request.float8->precompute_float8_dynamic_scale_for_fsdp = is_precomputed;
      OneOfTwo one(request, {1, 1, 2, 1, 1});
      expect_scales_over_ranks(one, [&] {
        if (is_precomputed) WeightStore::scale_shards({one.store.get()});
        one.store->refresh();
      });
    }
  }
}

TEST(WeightAmaxes, OfPartsThatTensorParallelRanksHoldAreReducedOverThem) {
  OneOfTwo one(plan_with_scales(ElementType::bfloat16, ElementType::bfloat16), {1, 1, 1, 1, 2});
  expect_scales_over_ranks(one, [&] { one.store->refresh(); });
}

TEST(WeightAmaxes, AreNotWantedOfShardsThatTravelInTheComputeDtype) {
  const OneOfTwo one(plan_with_scales(ElementType::float32, ElementType::bfloat16), {1, 1, 2, 1, 1});
  for (const Parameter* parameter : one.members) EXPECT_FALSE(parameter->amax.defined()) << parameter->name();
}

}  // namespace
}  // namespace titan
