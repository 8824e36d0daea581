#include "titan/train/pipeline_job.h"

#include <gtest/gtest.h>

#include "job.h"
#include "said.h"
#include "titan/parallel/parameter_places.h"
#include "titan/parallel/plan.h"

namespace titan {
namespace {

/// What a run with a pipeline of two ranks is told about `words`.
std::string told(std::vector<std::string> words) {
  words.emplace_back("--parallelism.pipeline_parallel_degree=2");
  return said(words);
}

::testing::AssertionResult holds(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

TEST(PipelineOfAJob, TellsEveryProblemWithTheNearestLegalNumbers) {
  EXPECT_EQ(told({}), "");
  EXPECT_TRUE(holds(told({"--parallelism.pipeline_parallel_microbatch_size=3"}), "the nearest legal sizes are 2 or 4"));
  const std::string points = "--parallelism.pipeline_parallel_split_points=layers.1,layers.2";
  const std::string both = told({points, "--parallelism.pipeline_parallel_microbatch_size=3"});
  EXPECT_TRUE(holds(both, "pipeline_parallel_split_points"));
  EXPECT_TRUE(holds(both, "3 stages"));
  EXPECT_TRUE(holds(both, "does not divide into pieces of 3"));
}

TEST(PipelineOfAJob, MicrobatchesAreNoConcernOfAJobWithoutOne) {
  const std::vector<ConfigCheck> checks{check_model};
  const std::vector<std::string> words{"--parallelism.pipeline_parallel_microbatch_size=3"};
  EXPECT_EQ(format_problems(load_config_text(Schema(), "", "job.toml", words, checks).problems), "");
}

TEST(PipelineOfAJob, AFileWithAScheduleIsReadAndItsMistakesAreTold) {
  const TestFolder folder;
  const std::vector<std::string> common{"--parallelism.pipeline_parallel_schedule=PipelineScheduleSingle",
                                        "--training.local_batch_size=2"};
  auto with_file = [&](const std::string& bytes) {
    std::vector<std::string> words = common;
    words.push_back("--parallelism.pipeline_parallel_schedule_csv=" + folder.write("mine.csv", bytes));
    return told(words);
  };
  EXPECT_EQ(with_file("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), "");
  EXPECT_TRUE(holds(with_file("0F0,0X1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), "row 1, cell 2"));
  EXPECT_TRUE(holds(with_file("0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n"), "1B0"));
  std::vector<std::string> missing = common;
  missing.push_back("--parallelism.pipeline_parallel_schedule_csv=" + folder / "absent.csv");
  EXPECT_TRUE(holds(told(missing), "absent.csv"));
}

TEST(PipelineOfAJob, CutsTheBatchAndGivesEveryRankItsStages) {
  const JobConfig config = job_config({"--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=8",
                                       "--training.global_batch_size=16", "--training.seq_len=32",
                                       "--parallelism.pipeline_parallel_microbatch_size=2",
                                       "--parallelism.pipeline_parallel_schedule=Interleaved1F1B"});
  const ModelFamily& family = *find_model_family(config.model.name);
  const ModelDescription model = family.describe(make_model_request(config, 1));
  std::vector<bool> seen(model.units.size());
  for (int64_t rank : {0, 1}) {
    PlanRequest request = make_plan_request(config, {make_mesh(config, 2), rank});
    add_pipeline(request, config, model);
    EXPECT_EQ(request.samples, 2);
    EXPECT_EQ(request.accumulation, 2 * 4);
    const Plan plan = make_plan(model, family, request);
    EXPECT_EQ(plan.stages.size(), 2);
    for (const UnitPlan& unit : plan.units) {
      EXPECT_FALSE(seen[unit.chain_index]) << unit.name << " is on two ranks";
      seen[unit.chain_index] = true;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), std::ssize(seen));
}

TEST(PipelineOfAJob, EveryRankKnowsWhichStagesHoldWhichParameter) {
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    const JobConfig config =
        job_config({"--model.name=llama3_2", "--model.flavor=1B", "--parallelism.pipeline_parallel_degree=2",
                    "--training.local_batch_size=8", "--training.seq_len=32",
                    std::string("--parallelism.pipeline_parallel_schedule=") + schedule});
    const ModelFamily& family = *find_model_family(config.model.name);
    const ModelDescription model = family.describe(make_model_request(config, 1));
    std::map<std::string, std::vector<int64_t>> holders;  // as the ranks' plans have it
    std::vector<std::vector<ParameterPlace>> told;
    for (int64_t rank : {0, 1}) {
      PlanRequest request = make_plan_request(config, {make_mesh(config, 2), rank});
      add_pipeline(request, config, model);
      for (const WeightGroupPlan& group : make_plan(model, family, request).groups) {
        for (const ParameterPlan& parameter : group.parameters) holders[parameter.spec.name].push_back(rank);
      }
      told.push_back(place_parameters(model, request));
    }
    for (const std::vector<ParameterPlace>& places : told) {
      EXPECT_EQ(places.size(), holders.size());
      for (const ParameterPlace& place : places)
        EXPECT_EQ(place.stages, holders.at(place.spec.name)) << place.spec.name;
    }
    EXPECT_EQ(holders.at("tok_embeddings.weight").size(), std::string(schedule) == "ZBVZeroBubble" ? 1u : 2u);
  }
}

}  // namespace
}  // namespace titan
