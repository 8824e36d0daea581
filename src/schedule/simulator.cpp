#include "titan/schedule/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "titan/base/error.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

/// The times at which receivers can use their messages.
class Arrivals {
 public:
  Arrivals(const TableFacts& facts, double transfer) : facts_(facts), transfer_(transfer) {}

  std::optional<double> of(const StageMessage& message) const {
    const auto batch = batches_.find(message);
    if (batch == batches_.end()) return of_one(message);
    double last = 0;
    for (const StageMessage& other : *batch->second) {
      const std::optional<double> arrival = of_one(other);
      if (!arrival) return std::nullopt;
      last = std::max(last, *arrival);
    }
    return last;
  }

  /// The same without the other messages of its batch.
  std::optional<double> of_one(const StageMessage& message) const {
    const auto found = arrived_.find(message);
    return found == arrived_.end() ? std::nullopt : std::optional(found->second);
  }

  /// These are received by one call: waiting for one waits for all.
  void received_together(const std::vector<StageMessage>& messages) {
    if (messages.size() < 2) return;
    const auto batch = std::make_shared<const std::vector<StageMessage>>(messages);
    for (const StageMessage& message : messages) batches_[message] = batch;
  }

  void made(const StageMessage& message, double when) {
    const bool local = rank_of(message.stage) == rank_of(message.receiver());
    if (local) arrived_[message] = when;
    if (!local && !facts_.has_transfers) arrived_[message] = when + transfer_;
  }

  /// One side of a transfer is posted; the second one determines when the message arrives.
  void posted(const StageMessage& message, double when) {
    const auto [first, alone] = posted_.insert({message, when});
    if (alone) return;
    double& channel = channels_[{message.backward, rank_of(message.stage), rank_of(message.receiver())}];
    channel = std::max({channel, when, first->second}) + transfer_;
    arrived_[message] = channel;
  }

 private:
  int rank_of(int stage) const { return facts_.rank_of_stage[static_cast<size_t>(stage)]; }

  const TableFacts& facts_;
  double transfer_;
  std::map<StageMessage, double> arrived_;
  std::map<StageMessage, double> posted_;
  std::map<StageMessage, std::shared_ptr<const std::vector<StageMessage>>> batches_;
  std::map<std::tuple<bool, int, int>, double> channels_;  // (direction, from, to) → when the last message arrives
};

/// One rank's clock, and work that overlaps with its compute.
struct RankState {
  size_t next = 0;
  bool posted = false;  // the next action's transfers are posted
  double clock = 0;
  double gathers_end = 0;
  double reductions_end = 0;
  std::map<int, double> weights;  // stage → when its gather ends
  int live = 0;
  int deferred = 0;
};

class Simulator {
 public:
  /// `blocking`: a transfer ends when the other side has also posted it.
  Simulator(const ScheduleTable& table, const ActionTimes& times, bool blocking = false)
      : table_(table),
        times_(times),
        blocking_(blocking),
        facts_(facts_of(table)),
        arrivals_(facts_, times.transfer),
        states_(table.size()) {
    result_.ranks.resize(table.size());
    result_.spans.resize(table.size());
  }

  Simulation run() {
    advance_all();
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      TITAN_CHECK(states_[rank].next == table_[rank].size(), rank, states_[rank].next);
      result_.time = std::max({result_.time, states_[rank].clock, states_[rank].reductions_end});
    }
    return std::move(result_);
  }

  /// What each rank that does not finish waits for.
  std::vector<std::string> stuck() {
    advance_all();
    std::vector<std::string> ranks;
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      if (states_[rank].next == table_[rank].size()) continue;
      const Action& action = table_[rank][states_[rank].next];
      ranks.push_back(fmt::format("deadlock: rank {}, action {} ({}) waits for {}", rank, states_[rank].next + 1,
                                  to_string(action), awaited(action)));
    }
    return ranks;
  }

 private:
  void advance_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < table_.size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
  }

  bool advance(size_t rank) {
    RankState& state = states_[rank];
    if (state.next == table_[rank].size()) return false;
    const Action& action = table_[rank][state.next];
    if (blocking_ && !std::exchange(state.posted, true)) {
      bool transfers = false;
      for (const Action& leaf : leaves(action)) {
        if (is_transfer(leaf.kind)) arrivals_.posted(carried_by(leaf), state.clock), transfers = true;
      }
      if (transfers) return true;
    }
    const std::optional<double> begin = earliest(state, action);
    if (!begin) return false;
    state.posted = false;
    double end = *begin;
    for (const Action& leaf : leaves(action)) {
      if (!is_compute(leaf.kind)) continue;
      const double duration = times_.of_stage(leaf.stage).of(leaf.kind);
      end += duration;
      result_.ranks[rank].busy += duration;
    }
    count(state, action, result_.ranks[rank]);
    std::vector<StageMessage> received;
    for (const Action& leaf : leaves(action)) {
      if (is_receive(leaf.kind)) received.push_back(carried_by(leaf));
    }
    arrivals_.received_together(received);
    for (const Action& leaf : leaves(action)) post(state, leaf, end);
    state.clock = end;
    result_.spans[rank].push_back({*begin, end});
    ++state.next;
    return true;
  }

  /// The time at which the rank can begin the action; nothing if an input's arrival is not known yet.
  std::optional<double> earliest(const RankState& state, const Action& action) const {
    double begin = state.clock;
    for (const Action& leaf : leaves(action)) {
      if (const std::optional<StageMessage> needed = needed_by(leaf, facts_.stages)) {
        const std::optional<double> arrival = arrivals_.of(*needed);
        if (!arrival) return std::nullopt;
        begin = std::max(begin, *arrival);
      }
      if (blocking_ && is_transfer(leaf.kind) && !arrivals_.of_one(carried_by(leaf))) return std::nullopt;
      auto gathered = state.weights.find(leaf.stage);
      if (is_compute(leaf.kind) && gathered != state.weights.end()) begin = std::max(begin, gathered->second);
    }
    return begin;
  }

  /// Describes why earliest() has no result.
  std::string awaited(const Action& action) const {
    for (const Action& leaf : leaves(action)) {
      if (is_transfer(leaf.kind)) {
        const StageMessage message = carried_by(leaf);
        if (arrivals_.of_one(message)) continue;
        return to_string(is_send(leaf.kind) ? receive_of(message) : send_of(message));
      }
      const std::optional<StageMessage> needed = needed_by(leaf, facts_.stages);
      if (!needed || arrivals_.of(*needed)) continue;
      return fmt::format("the {} of stage {} for microbatch {}", needed->backward ? "gradient" : "output",
                         needed->stage, needed->microbatch);
    }
    return {};
  }

  /// Records the messages, gathers and reductions that an action ending at `when` starts.
  void post(RankState& state, const Action& leaf, double when) {
    if (const std::optional<StageMessage> made = made_by(leaf, facts_.stages)) arrivals_.made(*made, when);
    if (is_transfer(leaf.kind) && !blocking_) arrivals_.posted(carried_by(leaf), when);
    if (leaf.kind == ActionKind::unshard) {
      state.gathers_end = std::max(state.gathers_end, when) + times_.gather;
      state.weights[leaf.stage] = state.gathers_end;
    }
    if (leaf.kind == ActionKind::reduce_grad) {
      state.reductions_end = std::max(state.reductions_end, when) + times_.reduce;
    }
  }

  static void count(RankState& state, const Action& action, RankLoad& load) {
    for (const Action& leaf : leaves(action)) {
      state.live += leaf.kind == ActionKind::forward;
      state.deferred += leaf.kind == ActionKind::input_gradient;
    }
    load.peak_live = std::max(load.peak_live, state.live);
    load.peak_deferred = std::max(load.peak_deferred, state.deferred);
    for (const Action& leaf : leaves(action)) {
      state.live -= finishes(leaf.kind);
      state.deferred -= leaf.kind == ActionKind::weight_gradient;
    }
  }

  const ScheduleTable& table_;
  const ActionTimes& times_;
  const bool blocking_;
  TableFacts facts_;
  Arrivals arrivals_;
  std::vector<RankState> states_;
  Simulation result_;
};

}  // namespace

double StageTimes::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward:
      return forward;
    case ActionKind::input_gradient:
      return input_gradient;
    case ActionKind::weight_gradient:
      return weight_gradient;
    default:
      return backward.value_or(input_gradient + weight_gradient);
  }
}

const StageTimes& ActionTimes::of_stage(int number) const {
  auto found = other_stages.find(number);
  return found == other_stages.end() ? stage : found->second;
}

double Simulation::idle(int rank) const { return time - ranks[static_cast<size_t>(rank)].busy; }

double Simulation::bubble() const {
  double busy = 0;
  for (const RankLoad& rank : ranks) busy += rank.busy;
  const double all = time * static_cast<double>(ranks.size());
  return all > 0 ? 1 - busy / all : 0;
}

Simulation simulate(const ScheduleTable& table, const ActionTimes& times) { return Simulator(table, times).run(); }

std::vector<std::string> deadlocks(const ScheduleTable& table) {
  const ActionTimes times;
  return Simulator(table, times, /*blocking=*/true).stuck();
}

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
  const int missing = std::max(0, p - m);  // number of microbatches below the number of ranks
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
