#include "titan/train/traffic_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/text.h"

namespace titan {
namespace {

Traffic planned_for(const Plan& plan, const std::string& communicator, size_t kind) {
  const auto found = std::find_if(plan.traffic.begin(), plan.traffic.end(), [&](const CommunicatorTraffic& planned) {
    return planned.communicator == communicator;
  });
  return found == plan.traffic.end() ? Traffic{} : found->table[kind];
}

}  // namespace

TrafficCheck check_traffic(const Plan& plan, const MeshCommunicators& communicators) {
  TrafficCheck check;
  for (const Communicator* communicator : communicators.all()) {
    for (size_t kind = 0; kind < kCollectives; ++kind) {
      const Traffic& counted = communicator->traffic()[kind];
      const Traffic planned = planned_for(plan, communicator->name(), kind);
      check.calls += counted.calls;
      check.sent_bytes += sent_bytes(static_cast<Collective>(kind), counted, communicator->size());
      if (counted == planned) continue;
      check.differences.push_back(fmt::format(
          "{} {}: {} calls and {} bytes, planned {} and {}", communicator->name(), name(static_cast<Collective>(kind)),
          counted.calls, with_thousands(counted.bytes), planned.calls, with_thousands(planned.bytes)));
    }
  }
  return check;
}

}  // namespace titan
