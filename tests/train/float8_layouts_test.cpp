// Float8 in every layout of the parity matrix. A bound for rounding cannot be a number: a layout's gradients may be no
// further from those of one fp32 process than half as much again as those of one float8 process are.
#include <gtest/gtest.h>

#include <map>

#include "comparison.h"
#include "support/planned_traffic.h"

namespace titan {
namespace {

/// Sizes of which every rank of tp4 holds multiples of 16.
LayoutRow with_float8(LayoutRow row, LinearFloat8Section request = {}) {
  row.sizes.multiple_of = 64;
  row.sizes.n_kv_heads = 8;
  row.sizes.dim = 128;
  row.sizes.n_layers = row.pipeline * row.stages_per_rank > 2 ? row.sizes.n_layers : 2;
  row.float8 = request;
  return row;
}

/// One process, its first gradients; run once for each kind of model and request.
const RankResult& alone(const LayoutRow& row, bool in_float8) {
  LayoutRow single;
  single.tied = row.tied;
  single.unequal_masks = row.unequal_masks;
  single.documents = row.documents;
  single.length = row.length;
  single.global_batch = row.global_batch;
  single.sizes = row.sizes;
  std::string key = fmt::format("{} {} {} {} {} {}", single.tied, single.unequal_masks, single.documents, single.length,
                                single.global_batch, single.sizes.n_layers);
  if (in_float8) {
    single.float8 = row.float8;
    single.float8->enable_fsdp_float8_all_gather = false;
    single.compute = row.compute;
    key += fmt::format(" {} {} {}", name(recipe_of(*row.float8)), row.float8->emulate, name(row.compute));
  }
  static std::map<std::string, RankResult> known;
  RankResult& result = known[key];
  if (result.losses.empty()) result = train_ranks(single, 1)[0];
  return result;
}

void expect_as_close_as_one_process(const LayoutRow& row) {
  const std::vector<RankResult> ranks = train_ranks(row, 2);
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(traffic_difference(rank), "");
    EXPECT_EQ(rank.losses, ranks[0].losses) << "all ranks know the same loss";
    EXPECT_EQ(rank.norms, ranks[0].norms);
    EXPECT_EQ(rank.to_device_bytes, rank.plan.to_device_bytes);
  }
  for (const auto& [name, gradient] : alone(row, false).gradients) {
    const double bound = 1.5 * gradient_error(alone(row, true).gradients.at(name), gradient);
    EXPECT_GT(bound, 1e-4) << name << " did pass through float8";
    for (const RankResult& rank : {ranks.front(), ranks.back()}) {
      EXPECT_LE(gradient_error(rank.gradients.at(name), gradient), bound) << name;
    }
  }
}

class Float8Layouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(Float8Layouts, AreAsCloseToFp32AsASingleFloat8Process) {
  expect_as_close_as_one_process(with_float8(GetParam(), {.enable_fsdp_float8_all_gather = true}));
}

INSTANTIATE_TEST_SUITE_P(Matrix, Float8Layouts, ::testing::ValuesIn(layout_rows()),
                         [](const auto& info) { return info.param.name(); });

LayoutRow changed(std::string layout, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = std::move(layout);
  change(row);
  return row;
}

std::vector<LayoutRow> further_rows() {
  return {
      changed("pp2", [](LayoutRow& row) { row.pipeline = 2; }),
      changed("pp2xfsdp2", [](LayoutRow& row) { row.pipeline = 2, row.shard = 2; }),
      changed("pp2xtp2", [](LayoutRow& row) { row.pipeline = 2, row.tensor = 2; }),
      changed("pp2_interleaved_full",
              [](LayoutRow& row) {
                row.pipeline = 2, row.schedule = "Interleaved1F1B", row.stages_per_rank = 2, row.recompute = "full";
              }),
      changed("pp2_zero_bubble_op",
              [](LayoutRow& row) {
                row.pipeline = 2, row.schedule = "InterleavedZeroBubble", row.stages_per_rank = 2, row.recompute = "op";
              }),
      changed("pp2xtp2_zbv",
              [](LayoutRow& row) {
                row.pipeline = 2, row.tensor = 2, row.schedule = "ZBVZeroBubble", row.stages_per_rank = 2;
              }),
      changed("cp2", [](LayoutRow& row) { row.context = 2; }),
      changed("cp2_alltoall_documents",
              [](LayoutRow& row) { row.context = 2, row.rotation = Rotation::all_to_all, row.documents = true; }),
      changed("fsdp2xcp2xtp2", [](LayoutRow& row) { row.shard = 2, row.context = 2, row.tensor = 2; }),
      changed("pp2xcp2", [](LayoutRow& row) { row.pipeline = 2, row.context = 2; }),
  };
}

/// Where the fused kernels, compiled for the host, find the amaxes.
std::vector<LayoutRow> fused_rows() {
  std::vector<LayoutRow> rows{
      changed("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
      changed("tp2", [](LayoutRow& row) { row.tensor = 2; }),
      changed("fsdp2xtp2", [](LayoutRow& row) { row.shard = 2, row.tensor = 2; }),
      changed("tp2_async", [](LayoutRow& row) { row.tensor = 2, row.async_tensor = true; }),
      changed("cp2", [](LayoutRow& row) { row.context = 2; }),
      changed("pp2", [](LayoutRow& row) { row.pipeline = 2; }),
      changed("fsdp2_graphs", [](LayoutRow& row) { row.shard = 2, row.graphs = true; }),
  };
  for (LayoutRow& row : rows) row.fused = true;
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Fused, Float8Layouts, ::testing::ValuesIn(fused_rows()),
                         [](const auto& info) { return info.param.layout; });

INSTANTIATE_TEST_SUITE_P(PipelinesAndContext, Float8Layouts, ::testing::ValuesIn(further_rows()),
                         [](const auto& info) { return info.param.layout; });

struct Variant {
  std::string name;
  std::string layout;
  LinearFloat8Section request;
  ElementType compute = ElementType::float32;
};

class Float8Variants : public ::testing::TestWithParam<Variant> {};

TEST_P(Float8Variants, AreAsCloseToFp32AsASingleFloat8Process) {
  LayoutRow row = with_float8(row_named(GetParam().layout), GetParam().request);
  row.compute = GetParam().compute;
  expect_as_close_as_one_process(row);
}

using enum Float8Recipe;
INSTANTIATE_TEST_SUITE_P(
    Float8, Float8Variants,
    ::testing::Values(
        Variant{"plain_gather_fsdp2", "fsdp2", {}}, Variant{"plain_gather_fsdp2xtp2", "fsdp2xtp2", {}},
        Variant{"precomputed_fsdp3",
                "fsdp3",
                {.enable_fsdp_float8_all_gather = true, .precompute_float8_dynamic_scale_for_fsdp = true}},
        Variant{"precomputed_hsdp2x2xtp2",
                "hsdp2x2xtp2",
                {.enable_fsdp_float8_all_gather = true, .precompute_float8_dynamic_scale_for_fsdp = true}},
        Variant{"precomputed_offload",
                "fsdp2_offload",
                {.enable_fsdp_float8_all_gather = true, .precompute_float8_dynamic_scale_for_fsdp = true}},
        Variant{
            "emulated_fsdp2xtp2",
            "fsdp2xtp2",
            {.enable_fsdp_float8_all_gather = true, .precompute_float8_dynamic_scale_for_fsdp = true, .emulate = true}},
        Variant{"bf16_fsdp2", "fsdp2", {.enable_fsdp_float8_all_gather = true}, ElementType::bfloat16},
        Variant{"bf16_fsdp2xtp2",
                "fsdp2xtp2",
                {.enable_fsdp_float8_all_gather = true, .precompute_float8_dynamic_scale_for_fsdp = true},
                ElementType::bfloat16},
        Variant{"filtered_fsdp2xtp2",
                "fsdp2xtp2",
                {.enable_fsdp_float8_all_gather = true, .filter_fqns = {"attention.wk", "w2"}}},
        Variant{"rowwise_fsdp2", "fsdp2", {.recipe_name = rowwise}},
        Variant{"rowwise_tp4", "tp4", {.recipe_name = rowwise}},
        Variant{"rowwise_async", "tp2_async", {.recipe_name = rowwise}},
        Variant{"rowwise_with_gw_hp_fsdp2xtp2", "fsdp2xtp2", {.recipe_name = rowwise_with_gw_hp}},
        Variant{"rowwise_with_gw_hp_full", "tp2_full", {.recipe_name = rowwise_with_gw_hp}}),
    [](const auto& info) { return info.param.name; });

TEST(Float8Gather, ChangesNoBitAndFindingScalesInAdvanceChangesNone) {
  for (const char* layout : {"fsdp3", "fsdp2xtp2", "fsdp2_offload"}) {
    const std::vector<RankResult> wide = train_ranks(with_float8(row_named(layout)), 4);
    for (const bool precomputes : {false, true}) {
      const LayoutRow row = with_float8(row_named(layout), {.enable_fsdp_float8_all_gather = true,
                                                            .precompute_float8_dynamic_scale_for_fsdp = precomputes});
      const std::vector<RankResult> narrow = train_ranks(row, 4);
      EXPECT_EQ(narrow[0].losses, wide[0].losses) << layout;
      for (const auto& [name, weight] : wide[0].weights) EXPECT_TRUE(same_bits(narrow[0].weights.at(name), weight));
    }
  }
}

int64_t gathered_bytes(const Plan& plan) {
  return planned_traffic(plan, "fsdp_gather")[static_cast<size_t>(Collective::all_gather)].bytes;
}

TEST(Float8Gather, SendsAByteForEveryElementOfAFloat8Weight) {
  const RankResult wide = train_ranks(with_float8(row_named("fsdp2")), 2)[0];
  const RankResult narrow = train_ranks(with_float8(row_named("fsdp2"), {.enable_fsdp_float8_all_gather = true}), 2)[0];
  EXPECT_EQ(traffic_difference(narrow), "");
  int64_t converted = 0, all = 0;
  for (const WeightGroupPlan& group : narrow.plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) {
      converted += parameter.in_float8 ? parameter.unsharded.numel() : 0;
    }
    all += group.gathered_bytes();
  }
  EXPECT_GT(converted, 0);
  // Two blocks in two slots come once a step.
  EXPECT_EQ(gathered_bytes(wide.plan) - gathered_bytes(narrow.plan), 3 * converted);
  EXPECT_LT(narrow.plan.weight_slots[0], wide.plan.weight_slots[0]);
}

TEST(Float8TensorParallel, GathersHiddenStatesInOneByteAnElement) {
  const Plan wide = train_ranks(with_float8(row_named("tp2"), {.recipe_name = rowwise}), 2)[0].plan;
  const Plan narrow = train_ranks(with_float8(row_named("tp2")), 2)[0].plan;
  auto gathered = [](const Plan& plan) {
    return planned_traffic(plan, "tp")[static_cast<size_t>(Collective::all_gather)];
  };
  EXPECT_EQ(gathered(narrow).calls, gathered(wide).calls);
  const int64_t hidden_elements = narrow.request.tokens() * width_of(narrow.units[0].hands_on);
  const int64_t blocks = static_cast<int64_t>(narrow.units.size()) - 2;
  // A block gathers for q, k and v, for gate and up, the gradients of both writers, and both inputs again.
  EXPECT_EQ(gathered(wide).bytes - gathered(narrow).bytes, 3 * 6 * blocks * hidden_elements);
}

/// Ranks that do not exchange the amaxes of what they share.
class Secretive : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  struct Nothing : PendingCollective {
    void wait() override {}
  };
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    if (reduction == Reduction::max) return std::make_unique<Nothing>();
    return ForwardingCommunicator::start_all_reduce(tensors, reduction);
  }
};

TEST(Float8Layouts, NoticeScalesThatRanksDoNotAgreeOn) {
  Fault fault;
  fault.communicators = [](int64_t, MeshCommunicators& communicators) {
    communicators.gather = std::make_shared<Secretive>(communicators.gather);
  };
  const LayoutRow row = with_float8(row_named("fsdp2"), {.enable_fsdp_float8_all_gather = true});
  const RankResult broken = train_ranks(row, 2, fault)[0];
  const RankResult whole = train_ranks(row, 2)[0];
  bool differs = false;
  for (const auto& [name, gradient] : whole.gradients)
    differs |= gradient_error(broken.gradients.at(name), gradient) > 0.05;
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace titan
