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

at::Tensor Optimizer::matrix_part(Parameter& parameter, const StepControl&) { refuse(parameter); }
at::Tensor Optimizer::matrix_update(const Parameter& parameter, const at::Tensor&) { refuse(parameter); }
void Optimizer::take_matrix_update(Parameter& parameter, const at::Tensor&) { refuse(parameter); }

std::unique_ptr<Optimizer> make_optimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                                          const OptimizerSection& options, uint64_t rounding_seed,
                                          std::shared_ptr<HostOffload> offload) {
  TITAN_CHECK(options.name == "Adam" || options.name == "AdamW", options.name);
  return std::make_unique<AdamOptimizer>(std::move(parameters), groups, options, rounding_seed, std::move(offload));
}

}  // namespace titan
