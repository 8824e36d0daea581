// The gradient parity matrix: every layout against a single process, row by row of layouts.tsv.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "comparison.h"

namespace titan {
namespace {

/// 20 steps, fewer on more ranks than the ordinary run has patience for.
int64_t steps_of(const LayoutRow& row) {
  const bool full = std::getenv("TITAN_TEST_FULL") != nullptr;
  return full || row.world() <= 4 ? 20 : 5;
}

class Layouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(Layouts, TrainAsASingleProcessDoesAndSendWhatThePlanSays) {
  const LayoutRow& row = GetParam();
  const RankResult& reference = reference_of(row);
  const std::vector<RankResult> ranks = train_ranks(row, steps_of(row));
  ASSERT_FALSE(HasFailure());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(difference(ranks[rank], reference), "") << "rank " << rank;
    EXPECT_EQ(traffic_difference(ranks[rank]), "") << "rank " << rank;
    EXPECT_EQ(ranks[rank].losses, ranks[0].losses) << "all ranks know the same loss";
    EXPECT_EQ(ranks[rank].norms, ranks[0].norms) << "and the same norm, to the bit";
    EXPECT_EQ(ranks[rank].to_device_bytes, ranks[rank].plan.to_device_bytes);
    EXPECT_EQ(ranks[rank].to_home_bytes, ranks[rank].plan.to_host_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, Layouts, ::testing::ValuesIn(layout_rows()),
                         [](const auto& info) { return info.param.name(); });

TEST(LayoutMatrix, HoldsEveryLayoutPlainAndEveryPairOfSettings) {
  const std::vector<LayoutRow> rows = layout_rows();
  std::set<std::string> names, plain;
  for (const LayoutRow& row : rows) {
    EXPECT_TRUE(names.insert(row.name()).second) << row.name() << " twice";
    if (row.name() == row.layout) plain.insert(row.layout);
  }
  EXPECT_EQ(plain.size(), 10u);
  auto occurs = [&](const auto& condition) { return std::any_of(rows.begin(), rows.end(), condition); };
  for (const std::string reshard : {"always", "never"}) {
    for (const std::string recompute : {"op", "full"}) {
      EXPECT_TRUE(occurs([&](const LayoutRow& r) { return r.reshard == reshard && r.recompute == recompute; }));
      EXPECT_TRUE(occurs([&](const LayoutRow& r) { return r.offload && r.recompute == recompute; }));
      EXPECT_TRUE(occurs([&](const LayoutRow& r) { return r.accumulation == 4 && r.reshard == reshard; }));
    }
  }
  EXPECT_TRUE(occurs([](const LayoutRow& r) { return r.async_tensor && r.tied; }));
}

TEST(LayoutMatrix, NoticesOneRanksGradientScaledByAThousandth) {
  Fault fault;
  fault.reduced_gradient = [](int64_t rank, Parameter& parameter) {
    if (rank == 1) parameter.gradient_shard.mul_(1.001);
  };
  const LayoutRow row = row_named("fsdp2");
  EXPECT_NE(difference(train_ranks(row, 3, fault)[0], reference_of(row)), "");
}

/// Passes everything on but the small all-reduces, which are those of norm weights.
class Forgetful : public Communicator {
 public:
  explicit Forgetful(std::shared_ptr<Communicator> inner)
      : Communicator(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)) {}
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }

 protected:
  struct Nothing : PendingCollective {
    void wait() override {}
  };
  Pending start_all_gather(Tensors outputs, Tensors inputs) override { return inner_->all_gather(outputs, inputs); }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    return inner_->reduce_scatter(outputs, inputs);
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    const bool of_norm_weights = tensors[0].dim() == 1 && tensors[0].numel() == 64;
    if (of_norm_weights) return std::make_unique<Nothing>();
    return inner_->all_reduce(tensors, reduction);
  }
  Pending start_permute(Tensors outputs, Tensors inputs, int64_t to, int64_t from) override {
    return inner_->permute(outputs, inputs, to, from);
  }

 private:
  std::shared_ptr<Communicator> inner_;
};

TEST(LayoutMatrix, NoticesAMissingAllReduceOfNormWeights) {
  Fault fault;
  fault.groups = [](int64_t, MeshGroups& groups) { groups.tensor = std::make_shared<Forgetful>(groups.tensor); };
  const LayoutRow row = row_named("tp2");
  const std::string found = difference(train_ranks(row, 2, fault)[0], reference_of(row));
  EXPECT_NE(found.find("norm"), std::string::npos) << found;
}

TEST(LayoutMatrix, NoticesACollectiveThatThePlanHasAndTheRunHasNot) {
  Fault fault;
  fault.groups = [](int64_t, MeshGroups& groups) { groups.replicate.reset(); };
  const std::vector<RankResult> ranks = train_ranks(row_named("ddp2"), 2, fault);
  EXPECT_NE(traffic_difference(ranks[0]).find("dp_replicate"), std::string::npos);
}

TEST(Layouts, GiveTheSameInitialWeightsBitForBit) {
  const RankResult single = train_ranks({}, 0)[0];
  for (const char* layout : {"fsdp3", "hsdp2x2xtp2", "tp4"}) {
    const std::vector<RankResult> ranks = train_ranks(row_named(layout), 0);
    for (const auto& [name, weight] : single.weights) {
      EXPECT_TRUE(same_bits(ranks.back().weights.at(name), weight)) << layout << " " << name;
    }
  }
}

TEST(Layouts, WithoutLossParallelTheLogitsAreGathered) {
  LayoutRow row = row_named("tp4");
  row.loss_parallel = false;
  const std::vector<RankResult> ranks = train_ranks(row, 5);
  EXPECT_EQ(difference(ranks[3], reference_of(row)), "");
  EXPECT_EQ(traffic_difference(ranks[3]), "");
}

class NarrowLayouts : public ::testing::TestWithParam<std::string> {};

TEST_P(NarrowLayouts, AreAsCloseToFp32AsASingleBf16Process) {
  LayoutRow row = row_named(GetParam());
  const RankResult& wide = reference_of(row);
  row.compute = ElementType::bfloat16;
  const RankResult& narrow = reference_of(row);
  const RankResult result = train_ranks(row, 2)[0];
  EXPECT_EQ(traffic_difference(result), "");
  for (const auto& [name, gradient] : wide.gradients) {
    EXPECT_LE(gradient_error(result.gradients.at(name), gradient),
              1.5 * gradient_error(narrow.gradients.at(name), gradient))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Bf16, NarrowLayouts,
                         ::testing::Values("ddp2", "fsdp2", "fsdp3", "hsdp2x2", "tp2", "tp4", "fsdp2xtp2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace titan
