#include "titan/schedule/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "other_rules.h"
#include "titan/base/error.h"
#include "titan/schedule/mesh_engine.h"

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
  double begin = 0;  // of the current action, as far as its inputs are known
  double clock = 0;
  double gathers_end = 0;
  double reductions_end = 0;
  std::map<int, double> weights;  // stage → when its gather ends
};

/// The ranks of a pipeline, each stage as one unit.
class Pipeline : public Mesh {
 public:
  /// `blocking`: a transfer ends when the other side has also posted it.
  Pipeline(const ScheduleTable& table, const ActionTimes& times, bool blocking, const RuleTable& rules)
      : table_(table),
        times_(times),
        blocking_(blocking),
        rules_(rules),
        facts_(facts_of(table)),
        arrivals_(facts_, times.transfer),
        states_(table.size()) {
    result_.ranks.resize(table.size());
    result_.spans.resize(table.size());
  }

  Simulation simulate() {
    TITAN_CHECK(run().empty() && "a table without problems ends");
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      result_.ranks[rank].peak_live = most_held(table_[rank], Thing::saved, rules_);
      result_.ranks[rank].peak_deferred = most_held(table_[rank], Thing::deferred, rules_);
      result_.time = std::max({result_.time, states_[rank].clock, states_[rank].reductions_end});
    }
    return std::move(result_);
  }

  /// What each rank that does not finish waits for.
  std::vector<std::string> stuck() {
    std::vector<std::string> ranks;
    for (const MeshEngine::Blocked& blocked : run()) {
      ranks.push_back(fmt::format("deadlock: rank {}, action {} ({}) waits for {}", blocked.rank, blocked.position + 1,
                                  to_string(*blocked.whole), awaited(blocked)));
    }
    return ranks;
  }

  bool apply(size_t rank, const Effect& effect, const Action& action) override {
    RankState& state = states_[rank];
    switch (effect.does) {
      case Does::releases:
        return effect.thing == Thing::saved || effect.thing == Thing::deferred || receives(state, action);
      case Does::needs:
        if (effect.thing == Thing::weights) state.begin = std::max(state.begin, gathered(state, action.stage));
        return true;
      case Does::acquires:
        if (effect.thing != Thing::output && effect.thing != Thing::input_gradient) return true;
        if (const std::optional<StageMessage> made = made_by(action, facts_.stages)) arrivals_.made(*made, state.clock);
        return true;
      case Does::posts:
        post(state, effect.thing, action);
        return true;
      default:
        return true;
    }
  }

  void works(size_t rank, const Action& action, Work) override {
    const double duration = times_.of_stage(action.stage).of(action.kind);
    states_[rank].clock = std::max(states_[rank].clock, states_[rank].begin) + duration;
    result_.ranks[rank].busy += duration;
  }

  bool ends(size_t rank, const Action& whole) override {
    std::vector<StageMessage> received;
    for (const Action& leaf : leaves(whole)) {
      if (!is_transfer(leaf.kind)) continue;
      if (blocking_ && !arrivals_.of_one(carried_by(leaf))) return false;
      if (is_receive(leaf.kind)) received.push_back(carried_by(leaf));
    }
    arrivals_.received_together(received);
    RankState& state = states_[rank];
    result_.spans[rank].push_back({state.begin, state.clock});
    state.begin = state.clock;
    return true;
  }

 private:
  std::vector<MeshEngine::Blocked> run() {
    MeshEngine engine(*this, rules_);
    for (const std::vector<Action>& actions : table_) engine.add_rank(actions);
    return engine.run();
  }

  /// The action begins when its message has arrived; false if it is not known when.
  bool receives(RankState& state, const Action& action) const {
    const std::optional<StageMessage> needed = needed_by(action, facts_.stages);
    if (!needed) return true;
    const std::optional<double> arrival = arrivals_.of(*needed);
    if (arrival) state.begin = std::max(state.begin, *arrival);
    return arrival.has_value();
  }

  static double gathered(const RankState& state, int stage) {
    const auto found = state.weights.find(stage);
    return found == state.weights.end() ? 0 : found->second;
  }

  /// Starts a message, gather or reduction at the end of the action's compute.
  void post(RankState& state, Thing thing, const Action& action) {
    if (thing == Thing::gather) {
      state.gathers_end = std::max(state.gathers_end, state.clock) + times_.gather;
      state.weights[action.stage] = state.gathers_end;
    } else if (thing == Thing::scatter) {
      state.reductions_end = std::max(state.reductions_end, state.clock) + times_.reduce;
    } else {
      arrivals_.posted(carried_by(action), state.clock);
    }
  }

  std::string awaited(const MeshEngine::Blocked& blocked) const {
    if (blocked.effect) {
      const StageMessage needed = *needed_by(*blocked.part, facts_.stages);
      return fmt::format("the {} of stage {} for microbatch {}", needed.backward ? "gradient" : "output", needed.stage,
                         needed.microbatch);
    }
    for (const Action& leaf : leaves(*blocked.whole)) {
      const StageMessage message = carried_by(leaf);
      if (!arrivals_.of_one(message)) return to_string(is_send(leaf.kind) ? receive_of(message) : send_of(message));
    }
    return {};
  }

  const ScheduleTable& table_;
  const ActionTimes& times_;
  const bool blocking_;
  const RuleTable& rules_;
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

Simulation simulate(const ScheduleTable& table, const ActionTimes& times, const RuleTable& rules) {
  return Pipeline(table, times, /*blocking=*/false, rules).simulate();
}

Simulation simulate(const ScheduleTable& table, const ActionTimes& times) {
  return simulate(table, times, action_rules());
}

std::vector<std::string> deadlocks(const ScheduleTable& table, const RuleTable& rules) {
  const ActionTimes times;
  return Pipeline(table, times, /*blocking=*/true, rules).stuck();
}

std::vector<std::string> deadlocks(const ScheduleTable& table) { return deadlocks(table, action_rules()); }

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
  const int missing = std::max(0, p - m);
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
  } else {
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
