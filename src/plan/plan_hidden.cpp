// What units hand on and report (UnitDescription::hands_on, statistics) in a plan: which tensors cross between units
// and stages, and where a step's message has each statistic.
#include <algorithm>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

size_t statistic_named(const Plan& plan, const std::string& name) {
  const auto found = std::find_if(plan.statistics.begin(), plan.statistics.end(),
                                  [&](const StatisticDescription& statistic) { return statistic.name == name; });
  return static_cast<size_t>(found - plan.statistics.begin());
}

/// The tensors that a trace has at one of its ends are those that the unit declares.
void check_end(const UnitTrace& trace, const std::vector<TracedTensor>& traced,
               const std::vector<HiddenTensor>& declared, const std::string& unit) {
  TITAN_CHECK(traced.size() == declared.size(), unit, traced.size(), declared.size());
  const TraceShape& shape = trace.shape();
  for (size_t i = 0; i < declared.size(); ++i) {
    const int64_t bytes = shape.tokens() / shape.tensor_ranks * declared[i].width * shape.element_size;
    TITAN_CHECK(trace.bytes(traced[i]) == bytes, unit, declared[i].name, trace.bytes(traced[i]), bytes);
  }
}

}  // namespace

void add_statistics(Plan& plan, const ModelDescription& model) {
  for (const UnitDescription& unit : model.units) {
    for (const StatisticDescription& statistic : unit.statistics) {
      TITAN_CHECK(statistic.numel > 0, unit.name, statistic.name, statistic.numel);
      const auto same = std::find_if(plan.statistics.begin(), plan.statistics.end(),
                                     [&](const StatisticDescription& other) { return other.name == statistic.name; });
      if (same == plan.statistics.end()) {
        plan.statistics.push_back(statistic);
      } else {
        TITAN_CHECK(*same == statistic, unit.name, statistic.name, statistic.numel, same->numel, statistic.loss_factor,
                    same->loss_factor);
      }
    }
  }
  plan.first_update_statistic = plan.statistics.size();
  for (size_t update = 0; update < plan.request.updates.size(); ++update) {
    const UpdateDescription& description = plan.request.updates[update];
    if (!description.statistics) continue;
    const std::vector<ParameterSpec> stepped = stepped_by(update, model, plan.request);
    for (StatisticDescription& statistic : description.statistics(stepped)) {
      TITAN_CHECK(statistic_named(plan, statistic.name) == plan.statistics.size(), statistic.name);
      plan.statistics.push_back(std::move(statistic));
    }
  }
}

void add_ends(const Plan& plan, const ModelDescription& model, size_t index, UnitPlan& unit) {
  const UnitDescription& description = model.units[index];
  if (index > 0) unit.takes = model.units[index - 1].hands_on;
  unit.hands_on = description.hands_on;
  TITAN_CHECK(unit.hands_on.empty() == (index + 1 == model.units.size()), unit.name, unit.hands_on.size());
  for (const StatisticDescription& statistic : description.statistics) {
    unit.statistics.push_back(statistic_named(plan, statistic.name));
  }
}

void check_ends(const UnitTrace& trace, const UnitPlan& unit) {
  check_end(trace, trace.inputs(), unit.takes, unit.name);
  check_end(trace, trace.outputs(), unit.hands_on, unit.name);
}

int64_t Plan::first_of_statistic(size_t index) const {
  int64_t numel = 0;
  for (size_t i = 0; i < index; ++i) numel += statistics[i].numel;
  return numel;
}

const std::vector<HiddenTensor>& Plan::message_of(int stage, bool of_input) const {
  const StagePlan& units_of = stage_numbered(*this, stage);
  return of_input ? units[units_of.first].takes : units[units_of.last - 1].hands_on;
}

int64_t Plan::message_bytes(std::span<const HiddenTensor> tensors) const {
  return hidden_rows * width_of(tensors) * size_of(request.training.mixed_precision_param);
}

}  // namespace titan
