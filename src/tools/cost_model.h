// Seconds that the parts of a step take on the hardware: computation by roofline, collectives by bandwidth and hops.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "titan/tools/simulate.h"

namespace titan {

/// Seconds by purpose, in the order of names.
using Seconds = std::map<std::string, double>;

/// The purpose of time in which a rank waits for messages of a communicator, or for copies.
std::string waiting_for(std::string_view track);

/// Of one rank's plan. What is asked for twice is computed once.
class CostModel {
 public:
  /// Both arguments outlive it.
  CostModel(const Plan& plan, const Hardware& hardware) : plan_(plan), hardware_(hardware) {}

  double collective_seconds(std::string_view communicator, Collective kind, const Traffic& traffic);
  /// Hidden states, or their gradient, to the next stage.
  double stage_message_seconds();
  /// Between the host's memory and the device's, either way.
  double host_copy_seconds(double bytes) const;
  /// Reads and writes of the device's memory.
  double memory_seconds(double bytes) const;
  double work_seconds(const TracedWork& work) const;
  /// The kind of product; work that only moves memory has its operation's name.
  static std::string purpose_of(const TracedWork& work, const TracedOperation& operation);
  /// Of a unit's phase, by purpose; messages that computation does not hide are waits.
  const Seconds& phase_seconds(const UnitPlan& unit, UnitTrace::Phase phase);

 private:
  /// Where a communicator's ranks are, as far as its speed depends on it.
  struct Link {
    int64_t ranks = 1;
    int64_t hosts = 1;
    double rate = 0;  // bytes a second that one rank sends in a ring
  };
  const Link& link(std::string_view communicator);

  const Plan& plan_;
  const Hardware& hardware_;
  std::map<std::string, Link, std::less<>> links_;
  std::map<std::pair<const UnitTrace*, UnitTrace::Phase>, Seconds> phases_;  // units with the same trace share it
};

}  // namespace titan
