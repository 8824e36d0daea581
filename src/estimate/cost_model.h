// Predicts the seconds that parts of a step take on the hardware: computation by roofline, collectives by bandwidth and
// hops.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "titan/estimate/simulate.h"

namespace titan {

/// Seconds by purpose, sorted by name.
using Seconds = std::map<std::string, double>;

/// The purpose of the time in which a rank waits for messages of a communicator, or for copies.
std::string waiting_for(std::string_view track);

/// Costs for one rank's plan. Repeated queries are cached.
class CostModel {
 public:
  /// Both arguments must outlive it.
  CostModel(const Plan& plan, const Hardware& hardware) : plan_(plan), hardware_(hardware) {}

  /// `received`: bytes, where a permute's ranks receive more than they send.
  double collective_seconds(std::string_view communicator, Collective kind, const Traffic& traffic,
                            int64_t received = 0);
  /// This SEND of hidden states or their gradients.
  double stage_message_seconds(const Action& send);
  /// Copying between host and device memory, in either direction.
  double host_copy_seconds(double bytes) const;
  /// Matrix products in the compute dtype.
  double product_seconds(double operations) const;
  /// Reading and writing device memory.
  double memory_seconds(double bytes) const;
  /// The time that writing `bytes` of a product's result adds to the product.
  double exposed_seconds(double bytes) const;
  double work_seconds(const TracedWork& work) const;
  /// The kind of product, or the operation's name for work that only moves memory.
  static std::string purpose_of(const TracedWork& work, const TracedOperation& operation, const TraceShape& shape);
  /// By purpose, for a phase of a unit; communication that computation does not hide counts as waiting.
  const Seconds& phase_seconds(const UnitPlan& unit, UnitTrace::Phase phase);

 private:
  /// The placement of a communicator's ranks, as far as it affects the speed.
  struct Link {
    int64_t ranks = 1;
    int64_t hosts = 1;
    double rate = 0;  // bytes per second that one rank sends in a ring
  };
  const Link& link(std::string_view communicator);
  /// One message of each rank to another.
  double message_seconds(const Link& link, double bytes) const;

  const Plan& plan_;
  const Hardware& hardware_;
  std::map<std::string, Link, std::less<>> links_;
  std::map<std::pair<const UnitTrace*, UnitTrace::Phase>, Seconds> phases_;  // units with the same trace share it
};

}  // namespace titan
