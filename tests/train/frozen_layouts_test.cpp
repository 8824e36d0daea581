// Frozen parameters (a group with lr_multiplier = 0) in every kind of layout: the numbers of one process, no gradient
// memory and no reduction of them, and traffic and memory as planned.
#include <regex>

#include "comparison.h"
#include "titan/plan/program.h"

namespace titan {
namespace {

// Whole groups (the embedding, the first block; with two stages all of the first), and parts of others.
constexpr const char* kFrozen = "^tok_embeddings|^layers\\.[01]\\.|layers.2.*(wq|norm)|^norm";

bool is_frozen(const std::string& name) { return std::regex_search(name, std::regex(kFrozen)); }

LayoutRow frozen_row(std::string layout, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = std::move(layout);
  row.frozen = kFrozen;
  change(row);
  return row;
}

std::vector<LayoutRow> frozen_layouts() {
  return {
      frozen_row("ddp2", [](LayoutRow& row) { row.replicate = 2, row.accumulation = 2; }),
      frozen_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
      frozen_row("fsdp2", [](LayoutRow& row) { row.shard = 2, row.reshard = "always", row.accumulation = 2; }),
      frozen_row("fsdp2", [](LayoutRow& row) { row.shard = 2, row.offload = true; }),
      frozen_row("fsdp3", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
      frozen_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
      frozen_row("tp2", [](LayoutRow& row) { row.tensor = 2, row.recompute = "op"; }),
      frozen_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2, row.recompute = "full"; }),
      frozen_row("pp2", [](LayoutRow& row) { row.pipeline = 2, row.tied = true; }),
      frozen_row("pp2xfsdp2",
                 [](LayoutRow& row) {
                   row.pipeline = row.shard = row.stages_per_rank = 2, row.schedule = "InterleavedZeroBubble";
                 }),
  };
}

class FrozenLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(FrozenLayouts, TrainAsASingleProcessDoesWithoutGradientsOfFrozenParameters) {
  const LayoutRow& row = GetParam();
  const std::vector<RankResult> ranks = expect_as_one_process(row);
  ASSERT_FALSE(HasFailure());
  const std::map<std::string, at::Tensor> begun = train_ranks(row, 0)[0].weights;
  for (const auto& [name, weight] : ranks[0].weights) {
    EXPECT_EQ(same_bits(weight, begun.at(name)), is_frozen(name)) << name;
    EXPECT_EQ(ranks[0].gradients.contains(name), !is_frozen(name)) << name;
  }
  for (const RankResult& rank : ranks) {
    int64_t trained = 0;
    for (const WeightGroupPlan& group : rank.plan.groups) {
      for (const ParameterPlan& parameter : group.parameters) {
        trained += is_frozen(parameter.spec.name) ? 0 : parameter.shard.numel();
      }
    }
    EXPECT_EQ(rank.gradient_bytes, 4 * trained);
    for (const MemoryPurpose& purpose : rank.plan.memory) {
      if (purpose.name == "gradients") {
        EXPECT_EQ(purpose.bytes, 4 * trained);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, FrozenLayouts, ::testing::ValuesIn(frozen_layouts()),
                         [](const auto& info) { return info.param.name(); });

TEST(FrozenGroups, HaveNoInstructionOfAGradientAndAreGatheredOnce) {
  const Plan plan =
      plan_of(frozen_row("fsdp2", [](LayoutRow& row) { row.shard = 2, row.reshard = "never"; }), /*rank=*/0);
  for (const RepeatedProgram& repeated : step_programs(plan, settled_state(plan))) {
    for (const Action& action : repeated.program.actions) {
      if (action.group < 0 || plan.groups[static_cast<size_t>(action.group)].is_trained()) continue;
      EXPECT_TRUE(action.kind == ActionKind::wait_unshard || action.kind == ActionKind::reshard)
          << to_line(plan, action);
    }
  }
  std::map<std::string, int64_t> calls;
  for (const Program& program : {expand(plan, ProgramKind::last_pass, stale_state(plan))}) {
    for (const Action& action : program.actions) {
      if (action.kind == ActionKind::unshard) ++calls[plan.groups[static_cast<size_t>(action.group)].name];
    }
  }
  EXPECT_EQ(calls["tok_embeddings"], 1) << "the first step gathers it";
}

}  // namespace
}  // namespace titan
