#include "titan/optimize/optimizer.h"

#include <map>
#include <string>

#include "titan/base/error.h"
#include "titan/job/updates.h"
#include "titan/optimize/adam.h"
#include "titan/optimize/muon.h"

namespace titan {
namespace {

[[noreturn]] void refuse(const Parameter& parameter) {
  throw InvariantError(
      fmt::format("internal error: the optimizer of {} computes no updates of whole matrices", parameter.name()));
}

MuonStatistics statistics_of(const Plan& plan) {
  MuonStatistics result;
  result.matrices = plan.numbered_parameters;
  const int64_t first = plan.first_of_statistic(plan.first_update_statistic);
  result.numel = plan.statistics_numel() - first;
  for (size_t i = plan.first_update_statistic; i < plan.statistics.size(); ++i) {
    const std::string& name = plan.statistics[i].name;
    if (!name.starts_with(kUpdateRms)) continue;
    result.of_kind[name.substr(std::string_view(kUpdateRms).size())] = plan.first_of_statistic(i) - first;
  }
  for (const WeightGroupPlan& group : plan.groups) {
    if (!group.measures_matrices) continue;
    for (const ParameterPlan& parameter : group.parameters) result.number[parameter.spec.name] = parameter.number;
  }
  return result;
}

std::unique_ptr<Optimizer> make_muon(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                                     const Plan& plan, uint64_t rounding_seed, std::shared_ptr<HostOffload> offload) {
  std::map<std::string, bool> takes_muon;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) {
      takes_muon[parameter.spec.name] = plan.request.updates[parameter.update].optimizer == OptimizerKind::muon;
    }
  }
  std::vector<bool> by_muon;
  for (const Parameter* parameter : parameters) by_muon.push_back(takes_muon.at(parameter->name()));
  return std::make_unique<MuonOptimizer>(std::move(parameters), groups, by_muon, plan.request.optimizer, rounding_seed,
                                         std::move(offload), statistics_of(plan));
}

}  // namespace

at::Tensor Optimizer::matrix_part(Parameter& parameter, int64_t, const StepControl&) { refuse(parameter); }
std::vector<at::Tensor> Optimizer::matrix_updates(std::span<Parameter* const> parameters, std::span<const at::Tensor>) {
  refuse(*parameters[0]);
}
void Optimizer::take_matrix_update(Parameter& parameter, const at::Tensor&) { refuse(parameter); }

std::unique_ptr<Optimizer> make_optimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                                          const Plan& plan, uint64_t rounding_seed,
                                          std::shared_ptr<HostOffload> offload) {
  const OptimizerSection& options = plan.request.optimizer;
  if (options.name == OptimizerKind::muon) {
    return make_muon(std::move(parameters), groups, plan, rounding_seed, std::move(offload));
  }
  return std::make_unique<AdamOptimizer>(std::move(parameters), groups, options, rounding_seed, std::move(offload));
}

}  // namespace titan
