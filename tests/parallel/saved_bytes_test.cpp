// Planned = counted: what each unit holds between its forward and its backward, by policy, dtype and shape.
#include <gtest/gtest.h>

#include <tuple>

#include "support/model.h"
#include "support/selections.h"
#include "titan/base/error.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/ops/float8_products.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

class SavedBytes : public ::testing::TestWithParam<std::tuple<ElementType, int64_t, NormType, std::string>> {};

TEST_P(SavedBytes, OfEveryUnitAreExactlyWhatThePlanSaid) {
  const auto& [compute, kv_heads, norm, family] = GetParam();
  for (const NamedSelection& named : all_selections()) {
    SCOPED_TRACE(named.name);
    PlanRequest plan = small_plan();
    plan.training.mixed_precision_param = compute;
    plan.recompute = named.selection;
    ModelRequest request = small_request(family, kv_heads);
    request.model.norm_type = norm;
    SmallModel small(request, plan, {.count_saved_bytes = true});
    forward(*small.executor, small.batch(), 0);
    for (size_t u = 0; u < small.plan.units.size(); ++u) {
      EXPECT_EQ(small.executor->saved_bytes(u, 0), small.plan.units[u].saved_bytes) << small.plan.units[u].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, SavedBytes,
                         ::testing::Combine(::testing::Values(ElementType::float32, ElementType::bfloat16),
                                            ::testing::Values(2, 4),
                                            ::testing::Values(NormType::rmsnorm, NormType::layernorm),
                                            ::testing::Values("llama3")));
INSTANTIATE_TEST_SUITE_P(Relatives, SavedBytes,
                         ::testing::Combine(::testing::Values(ElementType::float32, ElementType::bfloat16),
                                            ::testing::Values(2), ::testing::Values(NormType::rmsnorm),
                                            ::testing::Values("qwen2", "qwen3")));

/// Of float8 layers that have sides for it.
ModelRequest float8_model() {
  ModelRequest request = small_request();
  request.sequence_length = 16;
  request.model.override_sizes = {
      .dim = 64, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .multiple_of = 16, .vocab_size = 59};
  return request;
}

TEST(SavedBytes, InFloat8AreWhatThePlanSaidWhicheverLayersAreConverted) {
  const ModelRequest request = float8_model();
  std::map<std::string, int64_t> of_a_block;
  for (const Float8Recipe recipe : {Float8Recipe::tensorwise, Float8Recipe::rowwise}) {
    for (const std::string unchanged : {"", "wk", "w2"}) {
      for (const NamedSelection& named : all_selections()) {
        SCOPED_TRACE(named.name + " " + unchanged);
        PlanRequest plan = small_plan();
        plan.training.mixed_precision_param = ElementType::bfloat16;
        plan.float8 = LinearFloat8Section{.recipe_name = recipe};
        if (!unchanged.empty()) plan.float8->filter_fqns = {unchanged};
        plan.recompute = named.selection;
        SmallModel small(request, plan, {.count_saved_bytes = true}, SmallModel::resident,
                         make_float8_products({.recipe = recipe, .keeps_weights = true}));
        forward(*small.executor, small.batch(), 0);
        for (size_t u = 0; u < small.plan.units.size(); ++u) {
          EXPECT_EQ(small.executor->saved_bytes(u, 0), small.plan.units[u].saved_bytes) << small.plan.units[u].name;
        }
        if (named.selection.mode == RecomputeSelection::Mode::none && recipe == Float8Recipe::tensorwise) {
          of_a_block[unchanged] = small.plan.units[1].saved_bytes;
        }
      }
    }
  }
  // A byte more for each number of the input, and none for the columns of a weight that is cast nowhere.
  const int64_t tokens = 2 * 16, key_value = 2 * 16, hidden = 176;
  EXPECT_EQ(of_a_block["wk"], of_a_block[""] + tokens * 64 - key_value * 64);
  EXPECT_EQ(of_a_block["w2"], of_a_block[""] + tokens * hidden - hidden * 64);
}

TEST(SavedBytes, HoldTheColumnsOfFloat8WeightsWhereWeightsStay) {
  const ModelRequest request = float8_model();
  const ModelFamily& family = *find_model_family(request.model.name);
  enum class Case { stay, cast_again, leave };
  std::map<Case, int64_t> of_a_block;
  for (const Case one : {Case::stay, Case::cast_again, Case::leave}) {
    PlanRequest plan_request = small_plan();
    plan_request.sequence_length = request.sequence_length;
    plan_request.training.mixed_precision_param = ElementType::bfloat16;
    plan_request.float8 = LinearFloat8Section{.force_recompute_fp8_weight_in_bwd = one == Case::cast_again};
    plan_request.training.enable_cpu_offload = one == Case::leave;
    const ModelDescription model = describe_model(request);
    const Plan plan = make_plan(model, plan_request);
    const Assembly assembly =
        assemble(family, request, {}, plan, MeshCommunicators{}, at::kCPU, /*seed=*/11, {.count_saved_bytes = true});
    BatchContext batch;
    batch.tokens = integers({2, 16}, model.vocabulary, 5);
    batch.labels = integers({2, 16}, model.vocabulary, 6);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      forward(*assembly.executor, batch, 0);
      for (size_t u = 0; u < plan.units.size(); ++u) {
        EXPECT_EQ(assembly.executor->saved_bytes(u, 0), plan.units[u].saved_bytes) << plan.units[u].name;
      }
      backward(*assembly.executor, batch, 0, microbatch == 1);
    }
    of_a_block[one] = plan.units[1].saved_bytes;
  }
  const int64_t columns = 64 * (64 + 2 * 32 + 64 + 3 * 176);
  EXPECT_EQ(of_a_block[Case::stay], of_a_block[Case::leave] + columns);
  EXPECT_EQ(of_a_block[Case::cast_again], of_a_block[Case::leave]);
}

class SavedBytesOfOneRank : public ::testing::TestWithParam<std::tuple<NamedSelection, std::string>> {};

TEST_P(SavedBytesOfOneRank, OfSeveralThatShareEveryMatrixAreWhatThePlanSaid) {
  const auto& [named, name] = GetParam();
  const ModelRequest request = small_request(name);
  const ModelFamily& family = *find_model_family(request.model.name);
  for (const ElementType compute : {ElementType::float32, ElementType::bfloat16}) {
    PlanRequest plan_request = small_plan();
    plan_request.sequence_length = request.sequence_length;
    plan_request.training.mixed_precision_param = compute;
    plan_request.recompute = named.selection;
    plan_request.place = {DeviceMesh({1, 1, 1, 1, 2}, 2), 1};
    const ModelDescription model = describe_model(request);
    const Plan plan = make_plan(model, plan_request);
    World world;
    world.rank = 1;
    world.size = 2;
    world.fake = true;
    const MeshCommunicators communicators = make_mesh_communicators(
        plan.request.place.mesh, world.rank, std::chrono::seconds(1), communicator_maker(world, at::kCPU));
    const Assembly assembly =
        assemble(family, request, {}, plan, communicators, at::kCPU, /*seed=*/11, {.count_saved_bytes = true});
    BatchContext batch;
    batch.tokens = integers({2, 13}, model.vocabulary, 5);
    batch.labels = integers({2, 13}, model.vocabulary, 6);
    forward(*assembly.executor, batch, 0);
    for (size_t u = 0; u < plan.units.size(); ++u) {
      EXPECT_EQ(assembly.executor->saved_bytes(u, 0), plan.units[u].saved_bytes) << plan.units[u].name;
    }
    backward(*assembly.executor, batch, 0, /*is_last=*/true);
    for (const CommunicatorTraffic& planned : plan.traffic) {
      if (planned.communicator != communicator_names::kTensor) continue;
      EXPECT_EQ(communicators.tensor->traffic(), planned.table);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, SavedBytesOfOneRank,
                         ::testing::Combine(::testing::ValuesIn(all_selections()),
                                            ::testing::Values("llama3", "qwen2", "qwen3")));

int64_t block_bytes(const RecomputeSelection& selection) {
  PlanRequest plan = small_plan();
  plan.recompute = selection;
  const ModelRequest request = small_request();
  plan.sequence_length = request.sequence_length;
  return make_plan(describe_model(request), plan).units[2].saved_bytes;
}

TEST(SavedBytes, FullRecomputeKeepsTheBlocksInputOnly) {
  EXPECT_EQ(block_bytes(selection(RecomputeSelection::Mode::full)), 2 * 13 * 24 * 4);
}

TEST(SavedBytes, EachPartThatIsRecomputedSavesMemoryAndNoSelectionKeepsMoreThanNone) {
  const int64_t nothing = block_bytes(selection(RecomputeSelection::Mode::none));
  const int64_t no_part = block_bytes(parts({}));
  for (const char* part : {"norm", "swiglu", "ffn", "qkv", "attention"}) {
    EXPECT_LT(block_bytes(parts({part})), no_part) << part;
  }
  for (const NamedSelection& named : all_selections()) EXPECT_LE(block_bytes(named.selection), nothing) << named.name;
}

TEST(SavedBytes, MicrobatchesInFlightAreCountedApartAndGoneAfterBackward) {
  SmallModel small(small_request(), small_plan(), {.count_saved_bytes = true});
  for (int64_t m : {0, 1}) forward(*small.executor, small.batch(), m);
  EXPECT_EQ(small.executor->saved_bytes(1, 0), small.plan.units[1].saved_bytes);
  backward(*small.executor, small.batch(), 0, false);
  EXPECT_THROW(small.executor->saved_bytes(1, 0), InvariantError);
  EXPECT_EQ(small.executor->saved_bytes(1, 1), small.plan.units[1].saved_bytes);
}

TEST(SavedBytes, InferenceHoldsNothing) {
  SmallModel small(small_request(), small_plan(), {.count_saved_bytes = true});
  forward(*small.executor, small.batch(), 0);
  backward(*small.executor, small.batch(), 0, true);
  small.executor->infer(small.batch(), UnitMode::evaluate);
  for (size_t u = 0; u < small.plan.units.size(); ++u) EXPECT_THROW(small.executor->saved_bytes(u, 0), InvariantError);
}

}  // namespace
}  // namespace titan
