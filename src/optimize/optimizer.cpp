#include "titan/optimize/optimizer.h"

#include "titan/base/error.h"
#include "titan/optimize/adam.h"

namespace titan {
namespace {

[[noreturn]] void refuse(const Parameter& parameter) {
  throw InvariantError(
      fmt::format("internal error: the optimizer of {} computes no updates of whole matrices", parameter.name()));
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
  TITAN_CHECK(options.name == "Adam" || options.name == "AdamW", options.name);
  return std::make_unique<AdamOptimizer>(std::move(parameters), groups, options, rounding_seed, std::move(offload));
}

}  // namespace titan
