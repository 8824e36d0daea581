#include "titan/job/pipeline_job.h"

#include <gtest/gtest.h>

#include "support/config_problems.h"
#include "support/job.h"
#include "titan/plan/plan.h"

namespace titan {
namespace {

/// The problems of a run with a pipeline of two ranks and `words`; sentences: tests/golden/launch.txt.
std::string problems_of(std::vector<std::string> words) {
  words.emplace_back("--parallelism.pipeline_parallel_degree=2");
  return config_problems(words);
}

TEST(PipelineOfAJob, MicrobatchesAreNoConcernOfAJobWithoutOne) {
  const std::vector<ConfigCheck> checks{check_contradictions, check_model};
  const std::vector<std::string> words{"--parallelism.pipeline_parallel_microbatch_size=3"};
  EXPECT_EQ(format_problems(load_config_text(Schema(), "", "job.toml", words, checks).problems), "");
}

TEST(PipelineOfAJob, AFileWithAScheduleIsRead) {
  const TestFolder folder;
  const std::string file = folder.write("mine.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(problems_of({"--parallelism.pipeline_parallel_schedule=PipelineScheduleSingle",
                         "--training.local_batch_size=2", "--parallelism.pipeline_parallel_schedule_csv=" + file}),
            "");
}

TEST(PipelineOfAJob, CutsTheBatchAndGivesEveryRankItsStages) {
  const JobConfig config = job_config({"--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=8",
                                       "--training.global_batch_size=16", "--training.seq_len=32",
                                       "--parallelism.pipeline_parallel_microbatch_size=2",
                                       "--parallelism.pipeline_parallel_schedule=Interleaved1F1B"});
  const ModelDescription model = describe_model(make_model_request(config, 1));
  std::vector<bool> seen(model.units.size());
  for (int64_t rank : {0, 1}) {
    PlanRequest request = make_plan_request(config, {make_mesh(config, 2), rank});
    add_pipeline(request, config, model);
    EXPECT_EQ(request.samples, 2);
    EXPECT_EQ(request.accumulation, 2 * 4);
    const Plan plan = make_plan(model, request);
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
    const ModelDescription model = describe_model(make_model_request(config, 1));
    std::map<std::string, std::vector<int64_t>> holders;  // as the ranks' plans have it
    std::vector<std::vector<ParameterPlace>> places_of_ranks;
    for (int64_t rank : {0, 1}) {
      PlanRequest request = make_plan_request(config, {make_mesh(config, 2), rank});
      add_pipeline(request, config, model);
      for (const WeightGroupPlan& group : make_plan(model, request).groups) {
        for (const ParameterPlan& parameter : group.parameters) holders[parameter.spec.name].push_back(rank);
      }
      places_of_ranks.push_back(place_parameters(model, request));
    }
    for (const std::vector<ParameterPlace>& places : places_of_ranks) {
      EXPECT_EQ(places.size(), holders.size());
      for (const ParameterPlace& place : places)
        EXPECT_EQ(place.stages, holders.at(place.spec.name)) << place.spec.name;
    }
    EXPECT_EQ(holders.at("tok_embeddings.weight").size(), std::string(schedule) == "ZBVZeroBubble" ? 1u : 2u);
  }
}

}  // namespace
}  // namespace titan
