#include "titan/job/pipeline_job.h"

#include "titan/base/error.h"
#include "titan/job/checks.h"
#include "titan/plan/plan.h"
#include "titan/schedule/action.h"

namespace titan {
namespace {

constexpr const char* kSchedule = "parallelism.pipeline_parallel_schedule";
constexpr const char* kScheduleFile = "pipeline_parallel_schedule_csv";

StageSplitRequest split_request(const JobConfig& config) {
  const ParallelismSection& section = config.parallelism;
  StageSplitRequest split;
  split.rule = section.split_rule;
  split.split_points = section.pipeline_parallel_split_points;
  if (section.pipeline_parallel_layers_per_stage) {
    split.layers_per_stage = static_cast<int>(*section.pipeline_parallel_layers_per_stage);
  }
  split.modules = section.module_fqns_per_model_part;
  split.first_stage_less_layers = static_cast<int>(section.pipeline_parallel_first_stage_less_layers);
  split.last_stage_less_layers = static_cast<int>(section.pipeline_parallel_last_stage_less_layers);
  return split;
}

}  // namespace

PipelinePlan make_pipeline(const JobConfig& config, const ModelDescription& model) {
  const ParallelismSection& section = config.parallelism;
  PipelineRequest request;
  request.ranks = static_cast<int>(section.pipeline_parallel_degree);
  request.schedule = section.pipeline_parallel_schedule;
  request.local_batch_size = static_cast<int>(config.training.local_batch_size);
  request.microbatch_size = static_cast<int>(section.pipeline_parallel_microbatch_size);
  request.chain = chain_of(model);
  request.split = split_request(config);
  if (const std::string& file = section.pipeline_parallel_schedule_csv; !file.empty()) {
    PipelinePlan refused;
    if (const std::string& error = section.custom_schedule.error; !error.empty()) {
      refused.problems.push_back({kScheduleFile, error, "name a file that can be read"});
      return refused;
    }
    CsvTable table = parse_csv(section.custom_schedule.text, file);
    for (const std::string& problem : table.problems) {
      refused.problems.push_back({kScheduleFile, problem, "correct the file"});
    }
    if (!refused.problems.empty()) return refused;
    request.custom = std::move(table.table);
  }
  return plan_pipeline(request);
}

std::vector<Problem> check_pipeline(const JobConfig& config, const ModelDescription& model, const Origins& origins) {
  std::vector<Problem> problems;
  const ParallelismSection& section = config.parallelism;
  if (section.pipeline_parallel_degree == 1) return problems;
  const bool names_a_file = !section.pipeline_parallel_schedule_csv.empty();
  const bool is_custom = section.pipeline_parallel_schedule.starts_with("PipelineSchedule");
  if (is_custom && !names_a_file) return problems;  // check_contradictions has reported the missing file: not twice
  if (names_a_file && !is_custom && origins.is_set(kSchedule)) {
    problems.push_back(
        origins.note(kSchedule, fmt::format("{} = \"{}\" has no effect: the schedule is read from parallelism.{}",
                                            kSchedule, section.pipeline_parallel_schedule, kScheduleFile)));
  }
  const PipelinePlan pipeline = make_pipeline(config, model);
  for (const PipelineProblem& problem : pipeline.problems) {
    problems.push_back(origins.problem("parallelism." + problem.option, problem.what, problem.remedy));
  }
  for (const std::string& warning : pipeline.warnings) {
    problems.push_back(origins.note("parallelism.pipeline_parallel_degree", warning));
  }
  return problems;
}

void add_pipeline(PlanRequest& request, const JobConfig& config, const ModelDescription& model) {
  if (request.place.mesh.size(MeshAxis::pp) > 1) add_pipeline(request, make_pipeline(config, model), model);
}

void add_pipeline(PlanRequest& request, const PipelinePlan& pipeline, const ModelDescription& model) {
  if (!pipeline.problems.empty()) {
    const PipelineProblem& problem = pipeline.problems[0];
    throw Error(ExitCode::bad_config,
                fmt::format("parallelism.{}: {}; {}", problem.option, problem.what, problem.remedy));
  }
  request.pipeline = pipeline_part(pipeline, model, request.place.coordinate(MeshAxis::pp));
  request.samples /= request.pipeline->microbatches;
  request.accumulation *= request.pipeline->microbatches;
}

}  // namespace titan
