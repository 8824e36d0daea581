// What theory says about the named schedules' idle time. Beside the simulator, which knows no theory: a test holds one
// against the other over every shape, and `titan_train schedule` prints both.
#pragma once

#include <optional>
#include <string>

#include "titan/schedule/families.h"
#include "titan/schedule/simulator.h"

namespace titan {

struct ClosedForm {
  double idle = 0;      ///< of each rank, in the times' unit
  double bubble = 0;    ///< idle / (idle + computing), 0 to 1
  std::string formula;  ///< of the idle time, in the letters p (ranks), v (stages per rank), m, F, B
};

/// All stages equal, messages free, merged pairs run one after the other (split_overlapped). Nothing where no formula
/// is known: schedules that split backward have one for F = I = W only. Sources: docs/schedules.md.
std::optional<ClosedForm> closed_form(const ScheduleFamily& family, const PipelineShape& shape,
                                      const StageTimes& times);

}  // namespace titan
