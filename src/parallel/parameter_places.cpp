#include "titan/parallel/parameter_places.h"

#include <algorithm>
#include <set>

#include "plan_parts.h"

namespace titan {
namespace {

bool uses(const UnitDescription& unit, const std::string& parameter) {
  return std::find(unit.borrowed.begin(), unit.borrowed.end(), parameter) != unit.borrowed.end();
}

}  // namespace

std::vector<ParameterPlace> place_parameters(const ModelDescription& model, const PlanRequest& request) {
  std::vector<ParameterPlace> places;
  for (size_t owner = 0; owner < model.units.size(); ++owner) {
    for (const ParameterSpec& spec : model.units[owner].parameters) {
      std::set<int64_t> stages;
      for (size_t unit = 0; request.pipeline && unit < model.units.size(); ++unit) {
        if (unit == owner || uses(model.units[unit], spec.name)) stages.insert(request.pipeline->rank_of_unit[unit]);
      }
      places.push_back({spec, plan_parameter(spec, request).layout, {stages.begin(), stages.end()}});
    }
  }
  return places;
}

}  // namespace titan
