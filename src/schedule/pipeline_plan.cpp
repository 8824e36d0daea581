#include "titan/schedule/pipeline_plan.h"

#include <fmt/format.h>

#include <functional>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/schedule/check.h"
#include "titan/schedule/families.h"

namespace titan {
namespace {

constexpr const char* kSchedule = "pipeline_parallel_schedule";
constexpr const char* kScheduleFile = "pipeline_parallel_schedule_csv";
constexpr const char* kMicrobatchSize = "pipeline_parallel_microbatch_size";

/// The sizes next to `size` that divide the batch into a number of microbatches that `legal` takes.
std::string nearest_sizes(int batch, int size, const std::function<bool(int)>& legal) {
  std::vector<std::string> found;
  auto fits = [&](int other) { return batch % other == 0 && legal(batch / other); };
  for (int below = size - 1; below >= 1 && found.empty(); --below) {
    if (fits(below)) found.push_back(std::to_string(below));
  }
  for (int above = size + 1; above <= batch; ++above) {
    if (!fits(above)) continue;
    found.push_back(std::to_string(above));
    break;
  }
  return join(found, " or ");
}

/// The batches next to `batch` that pieces of `size` cut into a number of microbatches that `legal` takes.
std::string nearest_batches(int batch, int size, const std::function<bool(int)>& legal) {
  constexpr int kFarthest = 1 << 12;  // microbatches; some number that a schedule takes is never far
  std::vector<std::string> found;
  for (int count = (batch - 1) / size; count >= 1; --count) {
    if (!legal(count)) continue;
    found.push_back(std::to_string(count * size));
    break;
  }
  for (int count = batch / size + 1; count <= batch / size + kFarthest; ++count) {
    if (!legal(count)) continue;
    found.push_back(std::to_string(count * size));
    break;
  }
  return join(found, " or ");
}

class Planner {
 public:
  explicit Planner(const PipelineRequest& request) : request_(request), split_(request.split) {}

  PipelinePlan plan() {
    split_.ranks = request_.ranks;
    if (request_.custom) {
      use_custom(*request_.custom);
    } else {
      use_named();
    }
    return std::move(plan_);
  }

 private:
  void add(const char* option, std::string what, std::string remedy) {
    plan_.problems.push_back({option, std::move(what), std::move(remedy)});
  }

  /// The microbatches, if the batch can be cut into them and `legal` takes their number.
  void cut_batch(const std::function<bool(int)>& legal, const std::string& rule) {
    const int batch = request_.local_batch_size;
    const int size = request_.microbatch_size;
    plan_.microbatches = batch / size;
    const bool divides = batch % size == 0;
    if (divides && legal(plan_.microbatches)) return;
    const std::string sizes = nearest_sizes(batch, size, legal);
    std::string what = divides ? fmt::format("{} microbatches (a batch of {} in pieces of {}) do not fit: {}",
                                             plan_.microbatches, batch, size, rule)
                               : fmt::format("a batch of {} does not divide into pieces of {}", batch, size);
    const std::string batches = nearest_batches(batch, size, legal);
    add(kMicrobatchSize, std::move(what),
        sizes.empty() ? fmt::format("no size fits a batch of {}: training.local_batch_size = {} would", batch, batches)
                      : fmt::format("legal sizes nearby: {}; or set training.local_batch_size to {}", sizes, batches));
  }

  void split_layers() {
    StageSplit split = split_stages(request_.chain, split_);
    plan_.stages = std::move(split.stages);
    plan_.problems.insert(plan_.problems.end(), split.problems.begin(), split.problems.end());
  }

  void use_named() {
    const ScheduleFamily* family = find_schedule(request_.schedule);
    if (family == nullptr) {
      std::vector<std::string> names;
      for (const ScheduleFamily& one : schedule_families()) names.emplace_back(one.name);
      return add(kSchedule, fmt::format("\"{}\" is no schedule", request_.schedule), "use one of " + join(names, ", "));
    }
    split_.least_stages_per_rank = family->least_stages_per_rank;
    split_.most_stages_per_rank = family->most_stages_per_rank;
    split_.default_stages_per_rank = family->least_stages_per_rank;
    split_layers();
    PipelineShape shape{request_.ranks, family->least_stages_per_rank, 1};
    if (!plan_.stages.empty()) shape.stages_per_rank = static_cast<int>(plan_.stages.size()) / request_.ranks;
    auto legal = [&](int microbatches) {
      shape.microbatches = microbatches;
      return family->microbatches_fit(shape);
    };
    cut_batch(legal, fmt::format("{} with {} ranks {}", family->name, request_.ranks, family->microbatch_rule));
    if (!plan_.problems.empty()) return;
    shape.microbatches = plan_.microbatches;
    plan_.compute = generate(*family, shape);
    finish();
  }

  void use_custom(const ScheduleTable& table) {
    const TableFacts facts = facts_of(table);
    for (const std::string& problem : table_problems(table, {request_.ranks, -1, -1})) {
      add(kScheduleFile, problem, "correct the file (titan_train schedule --from FILE shows it)");
    }
    if (facts.has_transfers || facts.has_weights || facts.has_reductions) {
      add(kScheduleFile, "the file holds more than compute actions", "leave F, B, I and W; the rest is added");
    }
    if (!plan_.problems.empty()) return;
    if (facts.stages % request_.ranks != 0) {
      return add(kScheduleFile,
                 fmt::format("its {} stages cannot be shared equally by {} ranks", facts.stages, request_.ranks),
                 "give every rank as many stages");
    }
    split_.least_stages_per_rank = split_.most_stages_per_rank = facts.stages / request_.ranks;
    split_.default_stages_per_rank = split_.least_stages_per_rank;
    split_layers();
    cut_batch([&](int microbatches) { return microbatches == facts.microbatches; },
              fmt::format("the schedule's file is for {}", facts.microbatches));
    plan_.compute = table;
    finish();
  }

  void finish() {
    plan_.rank_of_stage = facts_of(plan_.compute).rank_of_stage;
    const auto stages = std::ssize(plan_.rank_of_stage);
    if (plan_.microbatches >= stages) return;
    plan_.warnings.push_back(
        fmt::format("{} microbatches are fewer than the {} stages of the pipeline: ranks will be idle much of the time",
                    plan_.microbatches, stages));
  }

  const PipelineRequest& request_;
  StageSplitRequest split_;
  PipelinePlan plan_;
};

}  // namespace

PipelinePlan plan_pipeline(const PipelineRequest& request) {
  TITAN_CHECK(request.ranks >= 1 && request.microbatch_size >= 1 && request.local_batch_size >= 1, request.ranks,
              request.microbatch_size, request.local_batch_size);
  return Planner(request).plan();
}

}  // namespace titan
