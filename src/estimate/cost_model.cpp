#include "cost_model.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "titan/plan/program.h"

namespace titan {
namespace {

/// Share of the traffic of a product's result, beyond one write in the compute dtype, that delays the product: writing
/// is the last part of a tile's work, and a kernel overlaps only some of it with the next tile's. The share is assumed:
/// shares of rates were measured with results in the compute dtype.
constexpr double kExposed = 0.5;

// Seconds that one message takes to the next rank within a host (kHop) and to the next host (kHostHop), and that each
// collective or copy takes to start (kLaunch), however small it is. They are assumed, and matter for messages of less
// than about a megabyte, whose bytes take less time.
constexpr double kHop = 2e-6, kHostHop = 6e-6;
constexpr double kLaunch = 6e-6;

}  // namespace

std::string waiting_for(std::string_view track) { return "waiting for " + std::string(track); }

double CostModel::collective_seconds(std::string_view communicator, Collective kind, const Traffic& traffic,
                                     int64_t received) {
  const Link& ring = link(communicator);
  if (ring.ranks == 1 || traffic.calls == 0) return 0;
  const auto calls = static_cast<double>(traffic.calls);
  if (kind == Collective::permute) {
    return calls * message_seconds(ring, static_cast<double>(std::max(traffic.bytes, received)) / calls);
  }
  const double hops = kHostHop * std::log2(static_cast<double>(ring.hosts)) +
                      kHop * static_cast<double>(std::min<int64_t>(ring.ranks, 8) - 1);
  return sent_bytes(kind, traffic, ring.ranks) / ring.rate + calls * (kLaunch + hops);
}

// Messages go straight from rank to rank, through the card of each. Where some go to another host, all wait for those.
double CostModel::message_seconds(const Link& link, double bytes) const {
  const bool leaves_host = link.hosts > 1;
  const double rate = leaves_host ? hardware_.network_rate : hardware_.nvlink_rate;
  return bytes / rate + kLaunch + (leaves_host ? kHostHop : kHop);
}

double CostModel::stage_message_seconds(const Action& send) {
  const auto bytes = static_cast<double>(plan_.message_bytes(plan_.message_of(send.stage, carried_by(send).backward)));
  return message_seconds(link(communicator_names::kPipeline), bytes);
}

double CostModel::host_copy_seconds(double bytes) const { return kLaunch + bytes / hardware_.host_link_rate; }

double CostModel::product_seconds(double operations) const { return operations / hardware_.product_rate; }

double CostModel::memory_seconds(double bytes) const { return bytes / hardware_.memory_rate; }

double CostModel::exposed_seconds(double bytes) const { return kExposed * memory_seconds(bytes); }

double CostModel::work_seconds(const TracedWork& work) const {
  const double memory = memory_seconds(work.bytes), exposed = exposed_seconds(work.wide_bytes);
  switch (work.kind) {
    case WorkKind::product:
      return std::max(memory, work.operations / hardware_.product_rate + exposed);
    case WorkKind::float8_product:
      return std::max(memory, work.operations / hardware_.float8_rate + exposed);
    case WorkKind::attention:
      return std::max(memory, work.operations / hardware_.attention_rate);
    case WorkKind::memory:
      break;
  }
  return memory;
}

std::string CostModel::purpose_of(const TracedWork& work, const TracedOperation& operation, const TraceShape& shape) {
  constexpr std::string_view names[] = {"products", "float8 products", "attention"};
  if (work.kind != WorkKind::memory) return std::string(names[static_cast<size_t>(work.kind)]);
  if (operation.name != "linear") return std::string(operation.name);
  return shape.float8 ? "float8 casts" : "gradient copies";
}

const Seconds& CostModel::phase_seconds(const UnitPlan& unit, UnitTrace::Phase phase) {
  const auto [found, is_new] = phases_.try_emplace({unit.trace.get(), phase});
  if (!is_new) return found->second;
  Seconds& seconds = found->second;
  for (const UnitTrace::Part& part : unit.trace->parts(phase, unit.policy)) {
    double hides = 0;
    for (const TracedWork* work : part.work) {
      if (work->is_weight_gradient && plan_.request.splits_backward()) continue;
      const double each = work_seconds(*work);
      seconds[purpose_of(*work, *part.operation, unit.trace->shape())] += each;
      if (work->kind != WorkKind::memory) hides += each;
    }
    for (const TracedMessage* message : part.messages) {
      const double sent = collective_seconds(message->communicator, message->kind, message->traffic);
      // Ring attention and async tensor parallelism send one part while they compute another.
      const bool overlaps = message->through_peer_memory || message->communicator == communicator_names::kContext;
      const double hidden = overlaps ? std::min(hides, sent) : 0;
      hides -= hidden;
      seconds[waiting_for(message->communicator)] += sent - hidden;
      if (message->through_peer_memory && message->kind == Collective::reduce_scatter) {
        // Kernels add the ranks' parts in fp32 one by one; a collective adds while it sends.
        const double size = static_cast<double>(unit.trace->shape().element_size);
        seconds["partial sums"] += memory_seconds(static_cast<double>(message->traffic.bytes) / size * (size + 2 * 4));
      }
    }
  }
  return seconds;
}

const CostModel::Link& CostModel::link(std::string_view communicator) {
  if (const auto found = links_.find(communicator); found != links_.end()) return found->second;
  const std::vector<int64_t> members = members_of(plan_, communicator);
  std::set<int64_t> hosts;
  for (const int64_t member : members) hosts.insert(member / hardware_.gpus_per_host);
  Link ring{std::ssize(members), std::ssize(hosts), hardware_.nvlink_rate};
  if (ring.hosts > 1) {  // a ring across hosts uses as many network cards as it has ranks per host
    const double cards = static_cast<double>(ring.ranks) / static_cast<double>(ring.hosts);
    ring.rate = std::min(ring.rate, hardware_.network_rate * cards);
  }
  return links_[std::string(communicator)] = ring;
}

}  // namespace titan
