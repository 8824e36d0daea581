#include "titan/schedule/pipeline_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "shapes.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

/// "embedding+2 | 3 | 1+head" as "E2 3 1H": how many layers each stage has, and the ends.
std::string shown(const StageSplit& split) {
  std::vector<std::string> stages;
  for (const std::vector<std::string>& modules : split.stages) {
    const auto layers = std::count_if(modules.begin(), modules.end(),
                                      [](const std::string& name) { return name.starts_with("layers."); });
    const bool first = !modules.empty() && modules.front() == "tok_embeddings";
    const bool last = !modules.empty() && modules.back() == "output";
    stages.push_back(fmt::format("{}{}{}", first ? "E" : "", layers, last ? "H" : ""));
  }
  return join(stages, " ");
}

std::string text(const std::vector<PipelineProblem>& problems) {
  std::vector<std::string> lines;
  for (const PipelineProblem& one : problems)
    lines.push_back(fmt::format("{}: {}; {}", one.option, one.what, one.remedy));
  return join(lines, "\n");
}

/// What the problems are about; their sentences are in tests/golden/launch.txt.
std::vector<std::string> options_of(const std::vector<PipelineProblem>& problems) {
  std::vector<std::string> options;
  for (const PipelineProblem& one : problems) options.push_back(one.option);
  return options;
}

ModelChain chain(int layers) {
  ModelChain chain;
  chain.layers = layers;
  return chain;
}

StageSplitRequest request(int ranks, int per_rank, SplitRule rule = SplitRule::balanced) {
  StageSplitRequest request;
  request.ranks = ranks;
  request.least_stages_per_rank = request.most_stages_per_rank = request.default_stages_per_rank = per_rank;
  request.rule = rule;
  return request;
}

TEST(StageSplit, OfDecember2024GivesLayersLeftOverToTheStagesFromTheSecondOn) {
  auto split = [](int layers, int ranks, int per_rank) {
    return shown(split_stages(chain(layers), request(ranks, per_rank, SplitRule::december_2024)));
  };
  EXPECT_EQ(split(8, 2, 1), "E4 4H");
  EXPECT_EQ(split(8, 3, 1), "E2 3 3H");
  EXPECT_EQ(split(10, 4, 1), "E2 3 3 2H");
  EXPECT_EQ(split(8, 2, 2), "E2 2 2 2H");
  EXPECT_EQ(split(4, 4, 1), "E1 1 1 1H");
  EXPECT_EQ(split(5, 1, 1), "E5H");
}

TEST(StageSplit, BalancedCountsTheEndsAsLayersAndGivesTheFirstStagesOneMore) {
  auto split = [](int layers, int ranks, int per_rank) {
    return shown(split_stages(chain(layers), request(ranks, per_rank)));
  };
  EXPECT_EQ(split(6, 2, 1), "E3 3H");
  EXPECT_EQ(split(6, 4, 2), "E0 1 1 1 1 1 1 0H");
  EXPECT_EQ(split(7, 2, 1), "E4 3H");
  EXPECT_EQ(split(32, 4, 2), "E4 5 4 4 4 4 4 3H");
  StageSplitRequest heavy = request(4, 1);
  heavy.first_stage_less_layers = 0;
  heavy.last_stage_less_layers = 3;
  EXPECT_EQ(shown(split_stages(chain(13), heavy)), "E4 4 4 1H");
}

TEST(StageSplit, KeepsTheModulesOrderAndTheLayersNumbers) {
  const StageSplit split = split_stages(chain(4), request(3, 1));
  EXPECT_EQ(split.stages,
            (std::vector<std::vector<std::string>>{
                {"tok_embeddings", "layers.0"}, {"layers.1", "layers.2"}, {"layers.3", "norm", "output"}}));
}

TEST(StageSplit, EveryModuleIsInExactlyOneStageWhateverTheRule) {
  for (const SplitRule rule : {SplitRule::december_2024, SplitRule::balanced}) {
    for (int layers = 1; layers <= 20; ++layers) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        for (int per_rank = 1; per_rank <= 3; ++per_rank) {
          const StageSplit split = split_stages(chain(layers), request(ranks, per_rank, rule));
          ASSERT_EQ(split.stages.empty(), !split.problems.empty());
          if (!split.problems.empty()) continue;
          ASSERT_EQ(std::ssize(split.stages), ranks * per_rank);
          std::vector<std::string> all;
          for (const auto& stage : split.stages) all.insert(all.end(), stage.begin(), stage.end());
          ASSERT_EQ(std::ssize(all), layers + 3);
          for (int i = 0; i < layers; ++i) ASSERT_EQ(all[static_cast<size_t>(i + 1)], fmt::format("layers.{}", i));
        }
      }
    }
  }
}

TEST(StageSplit, BySizeMakesAsManyStagesAsThatNeeds) {
  StageSplitRequest by_size = request(2, 1);
  by_size.most_stages_per_rank = 4;
  by_size.layers_per_stage = 2;
  EXPECT_EQ(shown(split_stages(chain(6), by_size)), "E1 2 2 1H");
  by_size.layers_per_stage = 1;
  EXPECT_EQ(shown(split_stages(chain(6), by_size)), "E0 1 1 1 1 1 1 0H");
}

TEST(StageSplit, AtPointsAndByListsIsTakenAsItIs) {
  StageSplitRequest points = request(2, 2);
  points.split_points = {"layers.1", "layers.2", "layers.6"};
  EXPECT_EQ(shown(split_stages(chain(8), points)), "E1 1 4 2H");
  points.split_points = {"layers.0", "layers.2", "layers.6"};
  EXPECT_EQ(shown(split_stages(chain(8), points)), "E0 2 4 2H");
  StageSplitRequest lists = request(2, 1);
  lists.modules = {{"tok_embeddings", "layers.0"}, {"layers.1", "layers.2", "norm", "output"}};
  EXPECT_EQ(split_stages(chain(3), lists).stages, lists.modules);
}

struct Refused {
  std::string name;
  int layers;
  StageSplitRequest request;
  std::vector<std::string> options;
};

std::vector<Refused> refused() {
  std::vector<Refused> all;
  auto with = [&](std::string name, int layers, StageSplitRequest base, auto change, std::vector<std::string> options) {
    change(base);
    all.push_back({std::move(name), layers, std::move(base), std::move(options)});
  };
  auto nothing = [](StageSplitRequest&) {};
  const std::string degree = "pipeline_parallel_degree", size = "pipeline_parallel_layers_per_stage",
                    points = "pipeline_parallel_split_points", lists = "module_fqns_per_model_part";
  with("TooFewLayersIn2024", 3, request(4, 1, SplitRule::december_2024), nothing, {degree});
  with("TooFewLayers", 3, request(3, 2), nothing, {degree});
  with("AnEndThatCountsForTooMuch", 6, request(4, 1), [](auto& r) { r.last_stage_less_layers = 4; },
       {"pipeline_parallel_last_stage_less_layers"});
  with("StagesOfASizeThatDoNotDivide", 10, request(4, 1), [](auto& r) { r.layers_per_stage = 2; }, {size});
  with("StagesOfASizeThatTheScheduleDoesNotRun", 10, request(2, 1), [](auto& r) { r.layers_per_stage = 3; }, {size});
  with("PointsThatDoNotDivide", 8, request(2, 1), [](auto& r) { r.split_points = {"layers.2", "layers.4"}; }, {points});
  with("PointsThatAreNoLayersOrOutOfOrder", 4, request(5, 1),
       [](auto& r) {
         r.split_points = {"layers.3", "layers.2", "norm", "layers.4"};
       },
       {points, points, points});
  with("ListsWithEveryKindOfMistake", 3, request(2, 1),
       [](auto& r) {
         r.modules = {{"tok_embeddings", "layers.1", "layers.0", "layer.2", "norm"}, {}, {"layers.0", "output"}};
       },
       {lists, lists, lists, lists, lists, lists, lists});
  with("TwoWaysAtOnce", 4, request(2, 1),
       [](auto& r) {
         r.layers_per_stage = 3;
         r.split_points = {"layers.2"};
       },
       {points});
  return all;
}

void PrintTo(const Refused& one, std::ostream* out) { *out << one.name; }

class RefusedSplit : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedSplit, NamesTheOptionOfEveryProblem) {
  const StageSplit split = split_stages(chain(GetParam().layers), GetParam().request);
  EXPECT_EQ(options_of(split.problems), GetParam().options) << text(split.problems);
  EXPECT_TRUE(split.stages.empty());
}

INSTANTIATE_TEST_SUITE_P(StageSplit, RefusedSplit, ::testing::ValuesIn(refused()),
                         [](const auto& info) { return info.param.name; });

PipelineRequest pipeline(std::string schedule, int ranks, int layers, int batch, int size) {
  PipelineRequest request;
  request.schedule = std::move(schedule);
  request.ranks = ranks;
  request.chain.layers = layers;
  request.local_batch_size = batch;
  request.microbatch_size = size;
  return request;
}

TEST(PipelinePlan, NamesModulesRanksAndOrderOfEveryStage) {
  const PipelinePlan plan = plan_pipeline(pipeline("zbvzerobubble", 2, 6, 8, 2));
  EXPECT_EQ(text(plan.problems), "");
  EXPECT_EQ(plan.microbatches, 4);
  EXPECT_EQ(plan.rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(listed(table_problems(plan.compute, {2, 4, 4})), "");
  EXPECT_TRUE(plan.warnings.empty());
}

TEST(PipelinePlan, StagesPerRankFollowFromTheSplit) {
  PipelineRequest request = pipeline("Interleaved1F1B", 2, 6, 8, 1);
  request.split.layers_per_stage = 1;
  const PipelinePlan plan = plan_pipeline(request);
  EXPECT_EQ(text(plan.problems), "");
  EXPECT_EQ(plan.rank_of_stage, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(PipelinePlan, SaysEverythingThatIsWrongAtOnce) {
  using Options = std::vector<std::string>;
  const std::string size = "pipeline_parallel_microbatch_size";
  EXPECT_EQ(options_of(plan_pipeline(pipeline("1F1B", 4, 1, 8, 3)).problems),
            (Options{"pipeline_parallel_degree", size}));
  EXPECT_EQ(options_of(plan_pipeline(pipeline("1F1B", 4, 8, 2, 1)).problems), Options{size});
  EXPECT_EQ(options_of(plan_pipeline(pipeline("1F2B", 4, 8, 2, 1)).problems), Options{"pipeline_parallel_schedule"});
}

TEST(PipelinePlan, WarnsOfFewerMicrobatchesThanStages) {
  EXPECT_EQ(plan_pipeline(pipeline("Interleaved1F1B", 4, 8, 4, 1)).warnings.size(), 1u);
  EXPECT_EQ(plan_pipeline(pipeline("Interleaved1F1B", 4, 8, 8, 1)).warnings.size(), 0u);
}

TEST(PipelinePlan, ACustomTableDecidesStagesRanksAndMicrobatches) {
  PipelineRequest request = pipeline("PipelineScheduleMulti", 2, 6, 8, 1);
  request.custom = generated("LoopedBFS", 2, 2, 8);
  const PipelinePlan plan = plan_pipeline(request);
  EXPECT_EQ(text(plan.problems), "");
  EXPECT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(plan.compute, *request.custom);
  request.ranks = 4;
  EXPECT_EQ(options_of(plan_pipeline(request).problems), std::vector<std::string>{"pipeline_parallel_schedule_csv"});
  request.ranks = 2;
  request.local_batch_size = 6;
  EXPECT_EQ(options_of(plan_pipeline(request).problems), std::vector<std::string>{"pipeline_parallel_microbatch_size"});
}

}  // namespace
}  // namespace titan
