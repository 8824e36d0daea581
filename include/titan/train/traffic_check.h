// Compares the traffic that the communicators counted in a step with the plan.
#pragma once

#include <string>
#include <vector>

#include "titan/distributed/mesh_communicators.h"
#include "titan/plan/plan.h"

namespace titan {

struct TrafficCheck {
  int64_t calls = 0;
  double sent_bytes = 0;  // by this rank, as computed by `sent_bytes` of plan/collective.h
  /// One line for each communicator and kind of collective whose counts differ from the plan.
  std::vector<std::string> differences;
};

/// `communicators` must have counted exactly one training step since they were reset.
TrafficCheck check_traffic(const Plan& plan, const MeshCommunicators& communicators);

}  // namespace titan
