#include "titan/schedule/stage_split.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "shapes.h"
#include "titan/schedule/check.h"
#include "titan/schedule/pipeline_plan.h"

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

std::string told(const std::vector<PipelineProblem>& problems) {
  std::vector<std::string> lines;
  for (const PipelineProblem& one : problems)
    lines.push_back(fmt::format("{}: {}; {}", one.option, one.what, one.remedy));
  return join(lines, "\n");
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
  std::string says;
};

std::vector<Refused> refused() {
  std::vector<Refused> all;
  auto with = [&](std::string name, int layers, StageSplitRequest base, auto change, std::string says) {
    change(base);
    all.push_back({std::move(name), layers, std::move(base), std::move(says)});
  };
  auto nothing = [](StageSplitRequest&) {};
  with("TooFewLayersIn2024", 3, request(4, 1, SplitRule::december_2024), nothing,
       "pipeline_parallel_degree: 4 stages cannot be made of 3 layers; use at most 3 ranks, or a model of at least 4 "
       "layers");
  with("TooFewLayers", 3, request(3, 2), nothing,
       "pipeline_parallel_degree: 6 stages cannot be made of 3 layers (5 with what the ends count for); use at most 5 "
       "stages, or a larger model");
  with(
      "AnEndThatCountsForTooMuch", 6, request(4, 1), [](auto& r) { r.last_stage_less_layers = 4; },
      "pipeline_parallel_last_stage_less_layers: the last modules count for 4 layers, and a stage has room for 2; use "
      "at "
      "most 2, or fewer stages");
  with(
      "StagesOfASizeThatDoNotDivide", 10, request(4, 1), [](auto& r) { r.layers_per_stage = 2; },
      "pipeline_parallel_layers_per_stage: 2 layers per stage make of 12 (10 and what the ends count for) 6 stages, "
      "and "
      "4 ranks cannot share them equally; the nearest legal values are 3");
  with(
      "StagesOfASizeThatTheScheduleDoesNotRun", 10, request(2, 1), [](auto& r) { r.layers_per_stage = 3; },
      "pipeline_parallel_layers_per_stage: 3 layers per stage make of 12 (10 and what the ends count for) 4 stages, "
      "and "
      "2 per rank is not what the schedule runs; the nearest legal values are 6");
  with(
      "PointsThatDoNotDivide", 8, request(2, 1),
      [](auto& r) {
        r.split_points = {"layers.2", "layers.4"};
      },
      "pipeline_parallel_split_points: 2 split points make 3 stages, and 2 ranks cannot share them equally; the "
      "nearest "
      "legal numbers of stages are 2, with one split point less");
  with(
      "PointsThatAreNoLayersOrOutOfOrder", 4, request(5, 1),
      [](auto& r) {
        r.split_points = {"layers.3", "layers.2", "norm", "layers.4"};
      },
      "pipeline_parallel_split_points: \"layers.2\" does not come after layers.3; name every layer once, in rising "
      "order\n"
      "pipeline_parallel_split_points: \"norm\" is no layer of this model; name layers from layers.0 to layers.3\n"
      "pipeline_parallel_split_points: \"layers.4\" is no layer of this model; name layers from layers.0 to layers.3");
  with(
      "ListsWithEveryKindOfMistake", 3, request(2, 1),
      [](auto& r) {
        r.modules = {{"tok_embeddings", "layers.1", "layers.0", "layer.2", "norm"}, {}, {"layers.0", "output"}};
      },
      "module_fqns_per_model_part: the lists make 3 stages, and 2 ranks cannot share them equally; the nearest legal "
      "numbers of lists are 2\n"
      "module_fqns_per_model_part: \"layers.0\" of stage 0 comes before layers.1 in the model; list modules in the "
      "model's order\n"
      "module_fqns_per_model_part: \"layer.2\" of stage 0 is no module of this model; did you mean layers.2?\n"
      "module_fqns_per_model_part: the list of stage 1 is empty; give every stage a module\n"
      "module_fqns_per_model_part: \"layers.0\" is listed twice, the second time in stage 2; list every module once\n"
      "module_fqns_per_model_part: layers.2 is in no stage; list every module of the model once\n"
      "module_fqns_per_model_part: norm and output are in different stages; put them into the last stage together");
  with(
      "TwoWaysAtOnce", 4, request(2, 1),
      [](auto& r) {
        r.layers_per_stage = 3;
        r.split_points = {"layers.2"};
      },
      "pipeline_parallel_split_points: pipeline_parallel_split_points and pipeline_parallel_layers_per_stage say each "
      "for "
      "itself how the layers are split; keep one of them");
  return all;
}

void PrintTo(const Refused& one, std::ostream* out) { *out << one.name; }

class RefusedSplit : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedSplit, NamesTheOptionAndTheNearestLegalValues) {
  const StageSplit split = split_stages(chain(GetParam().layers), GetParam().request);
  EXPECT_EQ(told(split.problems), GetParam().says);
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
  EXPECT_EQ(told(plan.problems), "");
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
  EXPECT_EQ(told(plan.problems), "");
  EXPECT_EQ(plan.rank_of_stage, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(PipelinePlan, SaysEverythingThatIsWrongAtOnceWithTheNearestLegalSizes) {
  EXPECT_EQ(
      told(plan_pipeline(pipeline("1F1B", 4, 1, 8, 3)).problems),
      "pipeline_parallel_degree: 4 stages cannot be made of 1 layers (3 with what the ends count for); use at most 3 "
      "stages, or a larger model\n"
      "pipeline_parallel_microbatch_size: a batch of 8 does not divide into pieces of 3; the nearest legal sizes are "
      "2; or set training.local_batch_size to 12");
  EXPECT_EQ(
      told(plan_pipeline(pipeline("1F1B", 4, 8, 2, 1)).problems),
      "pipeline_parallel_microbatch_size: 2 microbatches (a batch of 2 in pieces of 1) do not fit: 1F1B with 4 ranks "
      "needs at least as many microbatches as ranks; no size fits a batch of 2: training.local_batch_size = 4 would");
  EXPECT_EQ(told(plan_pipeline(pipeline("1F2B", 4, 8, 2, 1)).problems),
            "pipeline_parallel_schedule: \"1F2B\" is no schedule; use one of GPipe, 1F1B, Interleaved1F1B, LoopedBFS, "
            "InterleavedZeroBubble, ZBVZeroBubble, DualPipeV");
}

TEST(PipelinePlan, WarnsOfFewerMicrobatchesThanStages) {
  EXPECT_EQ(plan_pipeline(pipeline("Interleaved1F1B", 4, 8, 4, 1)).warnings.size(), 1u);
  EXPECT_EQ(plan_pipeline(pipeline("Interleaved1F1B", 4, 8, 8, 1)).warnings.size(), 0u);
}

TEST(PipelinePlan, ACustomTableDecidesStagesRanksAndMicrobatches) {
  PipelineRequest request = pipeline("PipelineScheduleMulti", 2, 6, 8, 1);
  request.custom = generated("LoopedBFS", 2, 2, 8);
  const PipelinePlan plan = plan_pipeline(request);
  EXPECT_EQ(told(plan.problems), "");
  EXPECT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(plan.compute, *request.custom);
  request.ranks = 4;
  EXPECT_EQ(told(plan_pipeline(request).problems),
            "pipeline_parallel_schedule_csv: the table is for 2 ranks, not 4; correct the file (titan_train schedule "
            "--from FILE shows it)");
  request.ranks = 2;
  request.local_batch_size = 6;
  EXPECT_EQ(
      told(plan_pipeline(request).problems),
      "pipeline_parallel_microbatch_size: 6 microbatches (a batch of 6 in pieces of 1) do not fit: the schedule's "
      "file is for 8; no size fits a batch of 6: training.local_batch_size = 8 would");
}

}  // namespace
}  // namespace titan
