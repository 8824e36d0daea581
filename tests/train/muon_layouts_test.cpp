// Muon in every kind of layout, alone and combined: one process's losses and updates, the plan's traffic and memory,
// and each matrix orthogonalised by one rank. Eight rows always, the others with TITAN_TEST_FULL; all for 20 steps
// (compared_steps). Then offloaded and bf16 moments and the spike guard on four ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "comparison.h"
#include "titan/job/updates.h"

namespace titan {
namespace {

/// Sets a plan's updates to Muon's, with the iteration in fp32.
void update_by_muon(PlanRequest& request) {
  request.optimizer.name = OptimizerKind::muon;
  request.optimizer.muon.dtype = ElementType::float32;
  request.updates = update_descriptions(request.optimizer);
  request.update_of = [choice = update_choice(request.optimizer)](
                          const UnitDescription& unit, const ParameterSpec& spec) { return choice(unit.role, spec); };
}

LayoutRow muon_row(const std::string& name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row = changed_row(name, change);
  row.muon = true;
  row.change = update_by_muon;
  return row;
}

std::vector<LayoutRow> muon_rows() {
  std::vector<LayoutRow> rows{
      muon_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
      muon_row("tp2", [](LayoutRow& row) { row.tensor = 2; }),
      muon_row("pp2_tied", [](LayoutRow& row) { row.pipeline = 2, row.tied = true; }),
      muon_row("fsdp3_uneven", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
      muon_row("fsdp2xtp2_tied", [](LayoutRow& row) { row.shard = row.tensor = 2, row.tied = true; }),
      muon_row("fsdp2xcp2_accumulated", [](LayoutRow& row) { row.shard = row.context = 2, row.accumulation = 2; }),
      muon_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
      muon_row("pp2xfsdp2_two_groups", [](LayoutRow& row) {
        row.pipeline = row.shard = 2;
        row.second = "feed_forward";
      })};
  if (!std::getenv("TITAN_TEST_FULL")) return rows;
  const std::vector<LayoutRow> more{
      muon_row("ddp2", [](LayoutRow& row) { row.replicate = 2; }),
      muon_row("cp2", [](LayoutRow& row) { row.context = 2; }),
      muon_row("fsdp4", [](LayoutRow& row) { row.shard = 4; }),
      muon_row("fsdp5_uneven", [](LayoutRow& row) { row.shard = 5, row.global_batch = 20; }),
      muon_row("ddp2xtp2", [](LayoutRow& row) { row.replicate = row.tensor = 2; }),
      muon_row("ddp2xcp2", [](LayoutRow& row) { row.replicate = row.context = 2; }),
      muon_row("cp2xtp2", [](LayoutRow& row) { row.context = row.tensor = 2; }),
      muon_row("pp2xtp2", [](LayoutRow& row) { row.pipeline = row.tensor = 2; }),
      muon_row("pp2xcp2", [](LayoutRow& row) { row.pipeline = row.context = 2; }),
      muon_row("pp2xddp2", [](LayoutRow& row) { row.pipeline = row.replicate = 2; }),
      muon_row("fsdp3xtp2_uneven", [](LayoutRow& row) { row.shard = 3, row.tensor = 2, row.global_batch = 12; }),
      muon_row("fsdp2xtp4", [](LayoutRow& row) { row.shard = 2, row.tensor = 4; }),
      muon_row("fsdp2_always_recomputed",
               [](LayoutRow& row) { row.shard = 2, row.reshard = "always", row.recompute = "full"; }),
      muon_row("pp4_tied",
               [](LayoutRow& row) {
                 row.pipeline = 4;
                 row.tied = true;
               }),
      muon_row("pp2xfsdp2xtp2", [](LayoutRow& row) { row.pipeline = row.shard = row.tensor = 2; }),
      muon_row("pp2xfsdp2xcp2xtp2", [](LayoutRow& row) { row.pipeline = row.shard = row.context = row.tensor = 2; })};
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

bool is_muon_matrix(const std::string& name, const at::Tensor& weight) {
  return name.starts_with("layers.") && weight.dim() == 2;
}

/// ‖found − expected‖ / ‖expected‖ of all matrices that Muon steps together.
double error_of_matrices(const std::map<std::string, at::Tensor>& found,
                         const std::map<std::string, at::Tensor>& expected) {
  double gap = 0, size = 0;
  for (const auto& [name, tensor] : expected) {
    // Adam's first step has the sign of a gradient, however small: what AdamW steps is compared elsewhere.
    if (!is_muon_matrix(name, tensor)) continue;
    gap += (as_double(found.at(name)) - as_double(tensor)).square().sum().item<double>();
    size += as_double(tensor).square().sum().item<double>();
  }
  return std::sqrt(gap / size);
}

/// What matrices take on the way is as planned. It is counted from COLLECT on, so where no matrix is collected,
/// nothing. A rank whose pipeline stage has no matrix plans nothing either.
void expect_planned_matrix_bytes(const LayoutRow& row, const RankResult& rank) {
  const auto purpose = std::find_if(rank.plan.memory.begin(), rank.plan.memory.end(),
                                    [](const MemoryPurpose& one) { return one.name == "matrices being updated"; });
  const bool has_matrices =
      std::any_of(rank.plan.groups.begin(), rank.plan.groups.end(), [&](const WeightGroupPlan& group) {
        return std::any_of(group.parameters.begin(), group.parameters.end(), [&](const ParameterPlan& parameter) {
          return parameter.spec.trainable && rank.plan.request.updates[parameter.update].whole_matrices;
        });
      });
  ASSERT_EQ(purpose != rank.plan.memory.end(), has_matrices);
  const bool exchanges = has_matrices && row.replicate * row.shard * row.context * row.tensor > 1;
  if (!exchanges) {
    EXPECT_EQ(rank.matrix_bytes_held, 0);
    return;
  }
  // Temporaries of elementwise operations are not planned, and messages of a rank may be held longer by another one.
  EXPECT_NEAR(static_cast<double>(rank.matrix_bytes_held), static_cast<double>(purpose->bytes), 0.3 * purpose->bytes);
}

/// Whether a replica of this rank measures the updates of its matrices, which both compute.
bool leaves_measuring(const RankResult& rank) {
  return std::any_of(rank.plan.groups.begin(), rank.plan.groups.end(),
                     [](const WeightGroupPlan& group) { return !group.measures_matrices; });
}

class MuonLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(MuonLayouts, TrainAsOneProcess) {
  // Of all updates of the first step together. Gradients of a batch that is cut differ by about 2·10⁻⁷ of their norm,
  // and the iteration's slope of a⁵ = 485 at zero carries that into directions of small singular values: about 60 times
  // as much of a square matrix of 64 rows.
  // The first weights are equal, so the last ones differ by what the errors of 20 updates add up to. Updates of
  // independent directions are together √20 ≈ 4.5 times as long as one, and errors that all point the same way 20
  // times: 4.5 times the relative error of one update. Weights that differ have other gradients, which may double it:
  // about ten times the bound of one update. Measured are 1.6 to 3.7 times the first update's error, up to 1.2·10⁻⁵.
  constexpr double kUpdateError = 1e-5, kMatrixError = 2e-5, kLastWeightError = 1e-4;
  const LayoutRow& row = GetParam();
  const RankResult& alone = reference_of(row);
  const std::vector<RankResult> ranks = expect_as_one_process(row);
  for (const RankResult& rank : ranks) {
    for (const auto& [name, update] : alone.first_update) {
      if (is_muon_matrix(name, update)) {
        EXPECT_LE(gradient_error(rank.first_update.at(name), update), kMatrixError) << name;
      }
    }
    const double first = error_of_matrices(rank.first_update, alone.first_update);
    const double last = error_of_matrices(rank.weights, alone.weights);
    EXPECT_LE(first, kUpdateError);
    EXPECT_LE(last, kLastWeightError);
    RecordProperty("update_error", fmt::format("{:.3g}", first));
    RecordProperty("last_weight_error", fmt::format("{:.3g}", last));
    int64_t planned = 0;
    for (const WeightGroupPlan& group : rank.plan.groups) planned += rank.plan.moment_bytes(group);
    EXPECT_EQ(rank.moment_bytes_held, planned);
    expect_planned_matrix_bytes(row, rank);
    EXPECT_FALSE(leaves_measuring(rank));
  }
  // A step's statistics are the sums of squares of the updates, by kind of matrix. No rank leaves measuring to a
  // replica, so a matrix that two ranks orthogonalise would be in its sum twice; expect_as_one_process has compared the
  // sums with those of one process.
  ASSERT_FALSE(alone.statistics.back().empty());
  for (const double squares : alone.statistics.back()) EXPECT_GT(squares, 0) << "no matrix took the iteration";
}

INSTANTIATE_TEST_SUITE_P(Layouts, MuonLayouts, ::testing::ValuesIn(muon_rows()),
                         [](const auto& info) { return info.param.layout; });

TEST(MuonLayouts, AMatrixThatEachReplicaUpdatesIsMeasuredOnce) {
  const auto apart = [](const std::string& name, int64_t shards) {
    LayoutRow row = muon_row(name, [&](LayoutRow& row) { row.replicate = 2, row.shard = shards; });
    row.change = [shards](PlanRequest& request) {
      update_by_muon(request);
      for (UpdateDescription& update : request.updates) update.max_sharing_ranks = shards;
    };
    return row;
  };
  for (const LayoutRow& row : {apart("ddp2_apart", 1), apart("hsdp2x2_apart", 2)}) {
    SCOPED_TRACE(row.layout);
    ASSERT_FALSE(reference_of(row).statistics.back().empty());
    const std::vector<RankResult> ranks = expect_as_one_process(row);
    EXPECT_EQ(std::count_if(ranks.begin(), ranks.end(), leaves_measuring), std::ssize(ranks) / 2)
        << "else replicas shared the work";
  }
}

/// In place of its gradient every parameter gets the same numbers in each layout: what the layout's sums round
/// differently is then no longer an input of the update.
void put_equal_gradient(int64_t /*rank*/, Parameter& parameter) {
  at::Tensor whole = normal(parameter.spec().shape, std::hash<std::string>()(parameter.name()), at::kFloat, 0.01);
  const Box& box = parameter.shard_box();
  for (size_t d = 0; d < box.extent.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  parameter.gradient_shard.copy_(whole);
}

TEST(MuonLayouts, EqualMatricesHaveTheSameBitsInEveryLayout) {
  Fault equal;
  equal.reduced_gradient = put_equal_gradient;
  const RankResult alone = train_ranks(muon_row("single", [](LayoutRow&) {}), 2, equal)[0];
  for (const LayoutRow& row : {muon_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
                               muon_row("tp2", [](LayoutRow& row) { row.tensor = 2; }),
                               muon_row("fsdp3_uneven", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
                               muon_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
                               muon_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2; }),
                               muon_row("pp2xcp2", [](LayoutRow& row) { row.pipeline = row.context = 2; })}) {
    SCOPED_TRACE(row.layout);
    for (const RankResult& rank : train_ranks(row, 2, equal)) {
      EXPECT_EQ(rank.norms, alone.norms) << "else gradients are clipped by other factors";
      for (const auto& [name, weight] : alone.weights) {
        if (!is_muon_matrix(name, weight)) continue;
        EXPECT_TRUE(same_bits(rank.first_update.at(name), alone.first_update.at(name))) << name;
        EXPECT_TRUE(same_bits(rank.weights.at(name), weight)) << name;
        EXPECT_TRUE(same_bits(rank.first_moments.at(name), alone.first_moments.at(name))) << name;
      }
    }
  }
}

/// FSDP × TP, with messages through sockets (Gloo) as between hosts.
LayoutRow on_four_ranks() {
  return muon_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2, row.sockets = true; });
}

using TensorsByName = std::map<std::string, at::Tensor>;

void expect_same_bits(const TensorsByName& found, const TensorsByName& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
}

/// The share of elements that differ.
double share_that_differs(const TensorsByName& a, const TensorsByName& b) {
  int64_t differing = 0, all = 0;
  for (const auto& [name, tensor] : b) {
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
    differing += a.at(name).ne(tensor).sum().item<int64_t>();
    all += tensor.numel();
  }
  return static_cast<double>(differing) / static_cast<double>(all);
}

TEST(MuonOnFourRanks, MomentsOnTheHostChangeNoBitAndTravelAsPlanned) {
  constexpr int64_t kSteps = 4;
  LayoutRow row = on_four_ranks();
  const std::vector<RankResult> resident = train_ranks(row, kSteps);
  row.host_moments = true;
  const std::vector<RankResult> offloaded = train_ranks(row, kSteps);
  for (size_t rank = 0; rank < offloaded.size(); ++rank) {
    SCOPED_TRACE(rank);
    const RankResult& result = offloaded[rank];
    EXPECT_EQ(result.losses, resident[rank].losses);
    expect_same_bits(result.weights, resident[rank].weights);
    expect_same_bits(result.first_moments, resident[rank].first_moments);
    EXPECT_EQ(difference(result, reference_of(row)), "");
    EXPECT_EQ(traffic_difference(result), "");
    EXPECT_EQ(result.moment_bytes, result.plan.optimizer_offload_bytes) << "each moment once in a step, each way";
    EXPECT_GT(result.moment_bytes, 0);
    EXPECT_EQ(resident[rank].moment_bytes, 0);
  }
}

TEST(MuonOnFourRanks, Bf16WeightsAndMomentsAreRoundedAsInOneProcess) {
  const auto narrow = [](LayoutRow row) {
    row.master = row.state = ElementType::bfloat16;
    return row;
  };
  LayoutRow alone = narrow(muon_row("single", [](LayoutRow&) {}));
  const LayoutRow cut = narrow(on_four_ranks());
  // An element is rounded otherwise only where the difference of two sums of gradients decides. Later steps are
  // compared by their losses: the iteration multiplies what one rounding of a weight changes in the gradients.
  const RankResult one = train_ranks(alone, 1)[0];
  for (const RankResult& rank : train_ranks(cut, 1)) {
    EXPECT_LT(share_that_differs(rank.weights, one.weights), 0.01);
    EXPECT_LT(share_that_differs(rank.first_moments, one.first_moments), 0.01);
  }
  constexpr int64_t kSteps = 4;
  const RankResult longer = train_ranks(alone, kSteps)[0];
  for (const RankResult& rank : train_ranks(cut, kSteps)) {
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(rank.losses[step] / longer.losses[step], 1, step == 0 ? kFirstLossError : 2e-3) << step;
    }
  }
  alone.rounding_seed = 1;
  const RankResult other = train_ranks(alone, 1)[0];
  EXPECT_GT(share_that_differs(other.weights, one.weights), 0.2) << "rounding is stochastic";
  EXPECT_GT(share_that_differs(other.first_moments, one.first_moments), 0.2) << "of moments, too";
}

TEST(MuonOnFourRanks, ASpikeIsFoundAsInOneProcessAndItsStepChangesNothing) {
  constexpr int64_t kSpiked = 5;
  Fault spike, none;
  spike.spiked_step = kSpiked;
  none.spiked_step = kSpiked + 1;  // a guard that never meets it
  const RankResult alone = train_ranks(muon_row("single", [](LayoutRow&) {}), kSpiked, spike)[0];
  const RankResult before = train_ranks(on_four_ranks(), kSpiked - 1, none)[0];
  ASSERT_EQ(alone.spikes.back()[0], 1);
  const std::vector<RankResult> ranks = train_ranks(on_four_ranks(), kSpiked, spike);
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.spikes.back(), ranks[0].spikes.back()) << "all ranks judge alike, to the bit";
    for (size_t step = 0; step < kSpiked; ++step) {
      EXPECT_EQ(rank.spikes[step][0], alone.spikes[step][0]) << step;
      EXPECT_NEAR(rank.losses[step], alone.losses[step], kLossError * alone.losses[step]) << step;
    }
    expect_same_bits(rank.weights, before.weights);
    expect_same_bits(rank.first_moments, before.first_moments);
  }
}

}  // namespace
}  // namespace titan
