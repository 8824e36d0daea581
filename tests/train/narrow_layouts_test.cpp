// Layouts in bf16: what is multiplied, what is reduced, and the units that training.keep_fp32 leaves out of it. A bound
// for rounding cannot be a number: a layout may be no further from fp32 than half as much again as a single process in
// bf16 is. The single process reduces nothing; where gradients travel in bf16, its own is rounded as if it had sent it.
#include <gtest/gtest.h>

#include <algorithm>

#include "comparison.h"
#include "support/planned_traffic.h"

namespace titan {
namespace {

/// Of every rank's part of every gradient, and that the run sent what the plan says.
void expect_as_close_as_one_process(const LayoutRow& row, const std::vector<RankResult>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    EXPECT_EQ(traffic_difference(ranks[rank]), "");
    EXPECT_EQ(ranks[rank].strays, std::vector<std::string>()) << "its shards are those of the gradients looked at";
    for (const auto& [name, gradient] : ranks[0].gradients) {
      EXPECT_TRUE(same_bits(ranks[rank].gradients.at(name), gradient)) << name;
    }
  }
  LayoutRow in_fp32 = row;
  in_fp32.compute = ElementType::float32;
  in_fp32.keep_fp32.clear();
  const RankResult& wide = reference_of(in_fp32);
  const RankResult& narrow = reference_of(row);
  for (const auto& [name, gradient] : wide.gradients) {
    at::Tensor alone = narrow.gradients.at(name);
    if (row.reduce == ElementType::bfloat16) alone = alone.to(at::kBFloat16);
    const double error = gradient_error(ranks[0].gradients.at(name), gradient);
    EXPECT_LE(error, 1.5 * gradient_error(alone, gradient)) << name;
  }
}

class NarrowLayouts : public ::testing::TestWithParam<std::string> {};

TEST_P(NarrowLayouts, AreAsCloseToFp32AsASingleBf16Process) {
  LayoutRow row = row_named(GetParam());
  row.compute = ElementType::bfloat16;
  expect_as_close_as_one_process(row, train_ranks(row, 2));
}

INSTANTIATE_TEST_SUITE_P(Bf16, NarrowLayouts,
                         ::testing::Values("ddp2", "ddp4", "fsdp2", "fsdp3", "fsdp4", "hsdp2x2", "tp2", "tp4",
                                           "fsdp2xtp2", "hsdp2x2xtp2", "tp2_async", "fsdp2_always", "fsdp2_never",
                                           "fsdp2xtp2_always", "fsdp4_always_op", "hsdp2x2_always_full",
                                           "fsdp2xtp2_accumulation4_always_tied_async"),
                         [](const auto& info) { return info.param; });

// ---- training.mixed_precision_reduce = "bfloat16"

class NarrowReductions : public ::testing::TestWithParam<std::string> {};

TEST_P(NarrowReductions, AreAsCloseToFp32AsASingleBf16Process) {
  LayoutRow row = row_named(GetParam());
  row.compute = ElementType::bfloat16;
  row.reduce = ElementType::bfloat16;
  expect_as_close_as_one_process(row, train_ranks(row, 2));
}

TEST_P(NarrowReductions, AreWithinTheRoundingOfWhatTravels) {
  LayoutRow row = row_named(GetParam());
  const RankResult& wide = reference_of(row);
  row.reduce = ElementType::bfloat16;
  const std::vector<RankResult> ranks = train_ranks(row, 2);
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(traffic_difference(rank), "");
    EXPECT_EQ(rank.losses, ranks[0].losses);
    EXPECT_EQ(rank.norms, ranks[0].norms) << "every rank has the same sums";
    EXPECT_EQ(rank.to_host_bytes, rank.plan.to_host_bytes) << "which are fp32 again";
  }
  for (const auto& [name, gradient] : wide.gradients) {
    const double error = gradient_error(ranks[0].gradients.at(name), gradient);
    EXPECT_GT(error, kGradientError) << name << " did travel in bf16";
    // Each rounding moves an element by at most 2⁻⁹ of itself: a rank's share, and sums of shards and of replicas.
    EXPECT_LE(error, 3.0 / 512) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Bf16, NarrowReductions,
                         ::testing::Values("ddp2", "ddp4", "fsdp2", "fsdp3", "fsdp4", "fsdp2_offload", "hsdp2x2",
                                           "hsdp2x2_accumulation4", "hsdp2x2_offload", "fsdp2xtp2"),
                         [](const auto& info) { return info.param; });

int64_t bytes_of(const Plan& plan, const char* communicator, Collective kind) {
  return planned_traffic(plan, communicator)[static_cast<size_t>(kind)].bytes;
}

TEST(NarrowReductions, SendHalfTheBytesBetweenDataParallelRanksAndAsManyElsewhere) {
  LayoutRow row = row_named("hsdp2x2xtp2");
  const Plan wide = train_ranks(row, 0)[0].plan;
  row.reduce = ElementType::bfloat16;
  const Plan narrow = train_ranks(row, 0)[0].plan;
  const auto scatters = [](const Plan& plan) {
    return bytes_of(plan, communicator_names::kScatter, Collective::reduce_scatter);
  };
  const auto replicas = [](const Plan& plan) {
    return bytes_of(plan, communicator_names::kReplicate, Collective::all_reduce);
  };
  const auto norms = [](const Plan& plan) {
    return bytes_of(plan, communicator_names::kTensor, Collective::all_reduce);
  };
  EXPECT_EQ(2 * scatters(narrow), scatters(wide));
  EXPECT_EQ(2 * replicas(narrow), replicas(wide));
  EXPECT_EQ(norms(narrow), norms(wide)) << "norm weights are added up over tp in fp32";
}

TEST(NarrowReductions, OfReplicasWhoseWeightsLiveOnTheHostAreBackThereInFp32) {
  LayoutRow row = row_named("ddp2");
  row.offload = true;
  row.compute = row.reduce = ElementType::bfloat16;
  const std::vector<RankResult> ranks = train_ranks(row, 2);
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.to_host_bytes, rank.plan.to_host_bytes);
  expect_as_close_as_one_process(row, ranks);
}

TEST(NarrowReductions, OfTensorParallelRanksAloneDoNotExist) {
  LayoutRow row = row_named("tp2");
  row.reduce = ElementType::bfloat16;
  const RankResult result = train_ranks(row, 2)[0];
  EXPECT_EQ(difference(result, reference_of(row)), "");
  EXPECT_EQ(traffic_difference(result), "");
}

// ---- training.keep_fp32

std::vector<std::string> all_units() {
  return {"tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3", "head"};
}

class KeptUnits : public ::testing::TestWithParam<std::string> {};

TEST_P(KeptUnits, AllOfThemAreTheWholeModelInFp32) {
  LayoutRow row = row_named(GetParam());
  const RankResult& wide = reference_of(row);
  row.compute = ElementType::bfloat16;
  row.reduce = ElementType::bfloat16;
  row.keep_fp32 = all_units();
  const RankResult result = train_ranks(row, compared_steps())[0];
  EXPECT_EQ(difference(result, wide), "");
  EXPECT_EQ(traffic_difference(result), "");
}

TEST_P(KeptUnits, AmongBf16OnesAreAsCloseToFp32AsInASingleProcess) {
  LayoutRow row = row_named(GetParam());
  row.compute = ElementType::bfloat16;
  row.keep_fp32 = {"tok_embeddings", "layers.1", "head"};
  expect_as_close_as_one_process(row, train_ranks(row, 2));
}

INSTANTIATE_TEST_SUITE_P(Fp32, KeptUnits, ::testing::Values("ddp2", "fsdp2", "fsdp2_tied", "hsdp2x2", "fsdp2xtp2"),
                         [](const auto& info) { return info.param; });

TEST(KeptUnits, AreReducedInFp32WhereTheOthersAreReducedInBf16) {
  LayoutRow row = row_named("fsdp2");
  const RankResult& wide = reference_of(row);
  row.reduce = ElementType::bfloat16;
  row.keep_fp32 = {"layers.1"};
  const RankResult result = train_ranks(row, 2)[0];
  EXPECT_EQ(traffic_difference(result), "");
  for (const auto& [name, gradient] : wide.gradients) {
    const double error = gradient_error(result.gradients.at(name), gradient);
    const bool kept = name.starts_with("layers.1.");
    EXPECT_EQ(error <= kGradientError, kept) << name << ": " << error;
  }
}

}  // namespace
}  // namespace titan
