// What a plan says that one communicator sends in a step.
#pragma once

#include <string_view>

#include "titan/plan/plan.h"

namespace titan {

/// All zeros if the plan has no communicator of that name.
inline TrafficTable planned_traffic(const Plan& plan, std::string_view communicator) {
  for (const CommunicatorTraffic& planned : plan.traffic) {
    if (planned.communicator == communicator) return planned.table;
  }
  return {};
}

}  // namespace titan
