// What the communicators counted in a step, held against what the plan said.
#pragma once

#include <string>
#include <vector>

#include "titan/distributed/mesh_groups.h"
#include "titan/parallel/plan.h"

namespace titan {

struct TrafficCheck {
  int64_t calls = 0;
  double sent_bytes = 0;  // by this rank, as `sent_bytes` of communicator.h has it
  /// One line for each group and kind of collective whose counts are not the plan's.
  std::vector<std::string> differences;
};

/// `groups` have counted exactly one step of training since they were reset.
TrafficCheck check_traffic(const Plan& plan, const MeshGroups& groups);

}  // namespace titan
