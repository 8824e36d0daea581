#include "titan/schedule/closed_form.h"

#include <algorithm>

namespace titan {

std::optional<ClosedForm> closed_form(const ScheduleFamily& family, const PipelineShape& shape,
                                      const StageTimes& times) {
  const int p = shape.ranks;
  const int v = shape.stages_per_rank;
  const int m = shape.microbatches;
  const double forward = times.forward;
  const double backward = times.of(ActionKind::backward);
  const bool equal = times.input_gradient == forward && times.weight_gradient == forward && backward == 2 * forward;
  if (family.splits_backward && !equal) return std::nullopt;
  ClosedForm form;
  const int missing = std::max(0, p - m);  // microbatches short of filling every rank
  if (family.name == "GPipe" || family.name == "1F1B") {
    form.formula = "(p-1)(F+B)";
    form.idle = (p - 1) * (forward + backward);
  } else if (!family.splits_backward) {
    form.formula = missing == 0 ? "(p-1)(F+B)" : "(p-1 + (v-1)(p-m))(F+B)";
    form.idle = (p - 1 + (v - 1) * missing) * (forward + backward);
  } else if (family.name == "InterleavedZeroBubble") {
    const int short_of_half = std::max(0, p - 2 * m);
    form.formula = missing == 0 ? "(p-1)F" : short_of_half == 0 ? "(p-1 + v(p-m))F" : "(p-1 + v(p-m) + (v-1)(p-2m))F";
    form.idle = (p - 1 + v * missing + (v - 1) * short_of_half) * forward;
  } else {  // the V schedules
    const int few = 4 * p - 2 - 2 * m;
    const bool is_few = few > p - 1 && p > 1;
    form.formula = is_few ? "(4p-2-2m)F" : "(p-1)F";
    form.idle = (is_few ? few : p - 1) * forward;
  }
  const double computing = v * m * (forward + (family.splits_backward ? 2 * forward : backward));
  form.bubble = form.idle / (form.idle + computing);
  return form;
}

}  // namespace titan
