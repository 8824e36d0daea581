#include "titan/parallel/pipeline_part.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/schedule/lowering.h"

namespace titan {
namespace {

/// Units of the chain that the modules of a stage are: a head counts for all of its modules.
std::pair<size_t, size_t> units_of(const std::vector<std::string>& modules, const ModelDescription& model) {
  const ModelChain chain = chain_of(model);
  auto unit_of = [&](const std::string& module) -> size_t {
    const auto is_it = [&](const UnitDescription& unit) {
      return unit.name == module || (unit.role == UnitRole::head &&
                                     std::find(chain.last.begin(), chain.last.end(), module) != chain.last.end());
    };
    const auto found = std::find_if(model.units.begin(), model.units.end(), is_it);
    TITAN_CHECK(found != model.units.end(), module);
    return static_cast<size_t>(found - model.units.begin());
  };
  return {unit_of(modules.front()), unit_of(modules.back()) + 1};
}

}  // namespace

ModelChain chain_of(const ModelDescription& model) {
  ModelChain chain;
  chain.layers =
      static_cast<int>(std::count_if(model.units.begin(), model.units.end(),
                                     [](const UnitDescription& unit) { return unit.role == UnitRole::block; }));
  return chain;
}

PipelinePart pipeline_part(const PipelinePlan& pipeline, const ModelDescription& model, int64_t rank) {
  PipelinePart part;
  part.rank_of_stage.assign(pipeline.rank_of_stage.begin(), pipeline.rank_of_stage.end());
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    const auto [first, last] = units_of(pipeline.stages[stage], model);
    part.rank_of_unit.resize(last, pipeline.rank_of_stage[stage]);
    if (pipeline.rank_of_stage[stage] != rank) continue;
    part.stages.push_back({static_cast<int64_t>(stage), first, last});
  }
  part.microbatches = pipeline.microbatches;
  const ScheduleTable lowered = lower(pipeline.compute, {.sharded = false});
  part.actions = lowered[static_cast<size_t>(rank)];
  for (const std::vector<Action>& row : pipeline.compute) {
    for (const Action& action : row) part.splits_backward |= action.kind == ActionKind::weight_gradient;
  }
  return part;
}

int64_t planned_live(const PipelinePart& part) {
  int64_t live = 0, most = 0;
  for (const Action& merged : part.actions) {
    for (const Action& action : leaves(merged)) {
      if (action.kind == ActionKind::forward) most = std::max(most, ++live);
      if (action.kind == ActionKind::backward || action.kind == ActionKind::weight_gradient) --live;
    }
  }
  return most;
}

std::optional<std::pair<int64_t, int64_t>> tied_ranks_of(const PlanRequest& request, const ModelDescription& model) {
  if (!request.pipeline) return std::nullopt;
  const bool shared = std::any_of(model.units.begin(), model.units.end(),
                                  [](const UnitDescription& unit) { return !unit.borrowed.empty(); });
  const int64_t first = request.pipeline->rank_of_stage.front();
  const int64_t last = request.pipeline->rank_of_stage.back();
  if (!shared || first == last) return std::nullopt;
  return std::pair{std::min(first, last), std::max(first, last)};
}

}  // namespace titan
