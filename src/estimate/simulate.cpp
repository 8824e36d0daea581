#include "titan/estimate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>

#include "cost_model.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/plan/program.h"
#include "titan/schedule/mesh_engine.h"

namespace titan {
namespace {

EventKind kind_of(Work work) {
  switch (work) {
    case Work::forward:
      return EventKind::forward;
    case Work::backward:
      return EventKind::backward;
    case Work::weight_gradients:
      return EventKind::weight_gradient;
    case Work::none:
      return EventKind::waiting;
    default:
      return EventKind::optimizer;
  }
}

/// When each message of this pass arrives at its receiver; shared by all ranks.
using Arrivals = std::map<std::tuple<size_t, bool, int, int>, double>;

/// Runs the programs of one pipeline rank in simulated time. Other ranks of its collectives are assumed to be where it
/// is.
class RankClock {
 public:
  RankClock(const Plan& plan, const Hardware& hardware, bool keep_events)
      : plan_(plan), hardware_(hardware), costs_(plan, hardware), keep_events_(keep_events) {
    result.rank = plan.request.place.rank;
    step_ = step_programs(plan, settled_state(plan));
    for (const RepeatedProgram& repeated : step_) {
      const int64_t simulated = std::min(repeated.times, kSimulated);
      for (int64_t i = 0; i < simulated; ++i) {
        runs_.push_back({&repeated.program, i + 1 == simulated ? repeated.times - simulated : 0});
      }
    }
  }

  std::vector<const Action*> actions() const {
    std::vector<const Action*> all;
    for (const ProgramRun& run : runs_) {
      for (const Action& action : run.program->actions) all.push_back(&action);
    }
    return all;
  }

  /// Starts or waits for something; false if it waits for a message that was not sent yet.
  bool apply(const Effect& effect, const Action& action, Arrivals& arrivals) {
    const double begin = clock_;
    if (effect.does == Does::posts) post(effect.thing, action, arrivals);
    if (effect.does == Does::waits && !wait(effect.thing, action, arrivals)) return false;
    if (effect.does == Does::acquires && effect.thing == Thing::gradient) fresh_gradients_.insert(index(action));
    note(action, EventKind::waiting, kComputeTrack, begin, clock_);
    return true;
  }

  void work(const Action& action, Work work) {
    const double begin = clock_;
    compute(action, work);
    note(action, kind_of(work), kComputeTrack, begin, clock_);
  }

  /// An instruction has ended.
  void end_action() {
    if (++next_ < runs_[program_].program->actions.size()) return;
    repeat(static_cast<double>(runs_[program_].more));
    ++program_, next_ = 0;
    began_ = clock_, seconds_before_ = result.seconds;
  }

  double end() const {
    double last = clock_;
    for (const auto& [track, busy] : busy_) last = std::max(last, busy);
    return last;
  }

  SimulatedRank result;

 private:
  void compute(const Action& action, Work work) {
    switch (work) {
      case Work::forward:
        spend_phases(action, {UnitTrace::Phase::forward});
        if (unit_of(action).gradients_in_forward) add_to_gradients(unit_of(action));
        return;
      case Work::backward:
        spend_phases(action, {UnitTrace::Phase::replay, UnitTrace::Phase::backward});
        if (!unit_of(action).gradients_in_forward && !plan_.request.splits_backward()) {
          add_to_gradients(unit_of(action));
        }
        return;
      case Work::weight_gradients:
        for (const UnitPlan& unit : plan_.units) {
          if (unit.stage == action.stage) spend_weight_gradients(unit);
        }
        return;
      case Work::narrowing:
        if (plan_.groups[index(action)].narrows_gradient()) {
          move(6.0 * static_cast<double>(plan_.groups[index(action)].trained_numel()), "gradients");
        }
        return;
      case Work::squares:
        return move(gradient_bytes(action), "gradient norm");
      case Work::matrices:
        return spend(costs_.product_seconds(matrix_bytes(plan_, plan_.groups[index(action)]).operations),
                     matrices_purpose());
      case Work::optimizer:
        return optimize(action);
      case Work::copies:
        if (!plan_.copies_weights(plan_.groups[index(action)])) return;
        return move_where_weights_are(
            static_cast<double>((size_of(plan_.request.training.dtype) + 2) * plan_.groups[index(action)].shard_numel),
            "compute copies");
      case Work::none:
        return;
    }
  }

  void post(Thing thing, const Action& action, Arrivals& arrivals) {
    switch (thing) {
      case Thing::send:
        arrivals[key_of(carried_by(action))] = send(action);
        return;
      case Thing::receive:  // the sender's time is what a message takes
        return;
      case Thing::offload:
      case Thing::fetch:
        started_[key_of(thing, action)] =
            copy(action, thing == Thing::offload ? kToHost : kToDevice, saved_bytes(action));
        return;
      case Thing::host_copy:
        copy(action, kToHost, gradient_bytes(action));
        return;
      case Thing::call:
        return call(action);
      default:
        started_[key_of(thing, action)] = start(thing, action);
    }
  }

  bool wait(Thing thing, const Action& action, const Arrivals& arrivals) {
    if (thing == Thing::receive) {
      const auto found = arrivals.find(key_of(carried_by(action)));
      if (found == arrivals.end()) return false;
      wait_until(found->second, kWaitForStages);
    } else if (thing == Thing::host_copy) {  // one wait for all groups, as the optimizer on the host needs all
      wait_until(busy_[kToHost], waiting_for(kToHost));
    } else if (const auto found = started_.find(key_of(thing, action)); found != started_.end()) {
      wait_for(found->second);
    }
    return true;
  }

  /// Adds `times` more repetitions of the program that has just run.
  void repeat(double times) {
    if (times == 0) return;
    const double longer = times * (clock_ - began_);
    if (keep_events_) {
      result.events.push_back(
          {fmt::format("{} more such passes", times), kComputeTrack, EventKind::repeated, clock_, clock_ + longer});
    }
    for (auto& [purpose, seconds] : result.seconds) seconds += times * (seconds - seconds_before_[purpose]);
    clock_ += longer;
    for (auto& [track, busy] : busy_) busy += longer;
    for (auto& [key, started] : started_) started.end += longer;
  }

  static size_t index(const Action& action) { return static_cast<size_t>(action.group); }
  const UnitPlan& unit_of(const Action& action) const { return plan_.units[static_cast<size_t>(action.unit)]; }
  double saved_bytes(const Action& action) const { return static_cast<double>(unit_of(action).saved_bytes); }
  /// Elements that the optimizer steps, of one group or of all.
  double stepped(const Action& action) const {
    double sum = 0;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (action.group < 0 || g == index(action)) sum += static_cast<double>(plan_.groups[g].trained_shard_numel());
    }
    return sum;
  }
  double gradient_bytes(const Action& action) const {
    double sum = 0;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (action.group < 0 || g == index(action)) sum += static_cast<double>(plan_.groups[g].gradient_bytes());
    }
    return sum;
  }
  /// Of whole matrices that are not exchanged.
  double operations_in_step(const Action& action) const {
    double sum = 0;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const WeightGroupPlan& group = plan_.groups[g];
      const bool is_stepped = action.group < 0 || g == index(action);
      if (is_stepped && group.matrices.empty()) sum += matrix_bytes(plan_, group).operations;
    }
    return sum;
  }
  double moment_bytes(const Action& action) const {
    double sum = 0;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (action.group < 0 || g == index(action)) sum += static_cast<double>(plan_.moment_bytes(plan_.groups[g]));
    }
    return sum;
  }
  std::tuple<size_t, bool, int, int> key_of(const StageMessage& message) const {
    return {program_, message.backward, message.stage, message.microbatch};
  }

  void spend(double seconds, const std::string& purpose) {
    result.seconds[purpose] += seconds;
    clock_ += seconds;
  }
  void move(double bytes, const std::string& purpose) { spend(costs_.memory_seconds(bytes), purpose); }
  void move_where_weights_are(double bytes, const std::string& purpose) {
    plan_.request.training.enable_cpu_offload ? spend(bytes / hardware_.host_memory_rate, purpose + " on the host")
                                              : move(bytes, purpose);
  }
  void wait_until(double until, const std::string& purpose) {
    if (until > clock_) spend(until - clock_, purpose);
  }
  void note(const Action& action, EventKind kind, const std::string& track, double begin, double end) {
    if (keep_events_ && end > begin) result.events.push_back({to_line(plan_, action), track, kind, begin, end});
  }

  /// What was started: a thing of a group, or of a unit and microbatch.
  using Key = std::tuple<Thing, int, int>;
  static Key key_of(Thing thing, const Action& action) {
    if (thing == Thing::offload) return {thing, 0, 0};  // one is in flight at a time
    return action.unit >= 0 ? Key{thing, action.unit, action.microbatch} : Key{thing, action.group, 0};
  }
  struct Started {
    double end = 0;
    std::string track;
  };
  static constexpr const char* kToDevice = "copies to the device";
  /// No hardware file has a rate of fp32 products, which take several times as long.
  const char* matrices_purpose() const {
    const std::vector<UpdateDescription>& updates = plan_.request.updates;
    const bool wide = std::any_of(updates.begin(), updates.end(), [](const UpdateDescription& update) {
      return update.whole_matrices && update.matrix_type == ElementType::float32;
    });
    return wide ? "whole matrices, as if in bf16" : "whole matrices";
  }
  static constexpr const char* kToHost = "copies to the host";

  /// Collectives of one communicator run sequentially, concurrently with computation; shards on the host are copied to
  /// the device first.
  Started start(Thing thing, const Action& action) {
    Started started{clock_, ""};
    if (thing == Thing::gather && plan_.request.training.enable_cpu_offload) {
      started = copy(action, kToDevice, static_cast<double>(plan_.groups[index(action)].gathered_shard_bytes()));
    }
    for (const Exchange& exchange : exchanges_of(plan_, action)) {
      const std::string communicator(exchange.communicator);
      const double seconds =
          costs_.collective_seconds(communicator, exchange.kind, exchange.traffic, exchange.received);
      if (seconds == 0) continue;
      const double begin = std::max(started.end, busy_[communicator]);
      busy_[communicator] = begin + seconds;
      started = {begin + seconds, communicator};
      note(action, EventKind::communication, communicator, begin, begin + seconds);
    }
    return started;
  }
  /// Copies in one direction between host and device run sequentially, concurrently with everything else.
  Started copy(const Action& action, const char* direction, double bytes) {
    const double begin = std::max(clock_, busy_[direction]), end = begin + costs_.host_copy_seconds(bytes);
    busy_[direction] = end;
    note(action, EventKind::communication, direction, begin, end);
    return {end, direction};
  }
  void wait_for(const Started& started) {
    if (!started.track.empty()) wait_until(started.end, waiting_for(started.track));
  }
  /// Runs where the weights are. Offloaded moments are copied to the device and back concurrently.
  void optimize(const Action& action) {
    const PlanRequest& request = plan_.request;
    const double moments = moment_bytes(action);
    const double weights = 2 * static_cast<double>(size_of(request.training.dtype)) * stepped(action);
    const double all = gradient_bytes(action) + weights + 2 * moments;
    if (const double operations = operations_in_step(action)) {
      spend(costs_.product_seconds(operations), matrices_purpose());
    }
    if (!request.offloads_optimizer()) return move_where_weights_are(all, "optimizer");
    const Started in = copy(action, kToDevice, moments), out = copy(action, kToHost, moments);
    move(all, "optimizer");
    wait_for(in);
    wait_for(out);
  }
  /// A collective that is waited for at once. Those of REFRESH, a few amaxes, are not counted.
  void call(const Action& action) {
    if (rule_of(action_rules(), action.kind).work != Work::none) return;
    for (const Exchange& exchange : exchanges_of(plan_, action)) {
      const double seconds =
          costs_.collective_seconds(exchange.communicator, exchange.kind, exchange.traffic, exchange.received);
      note(action, EventKind::communication, std::string(exchange.communicator), clock_, clock_ + seconds);
      spend(seconds, waiting_for(exchange.communicator));
    }
  }
  /// Returns the arrival time of the message.
  double send(const Action& action) {
    double& busy = busy_[communicator_names::kPipeline];
    const double begin = std::max(clock_, busy);
    busy = begin + costs_.stage_message_seconds(action);
    note(action, EventKind::communication, communicator_names::kPipeline, begin, busy);
    return busy;
  }

  void spend_weight_gradients(const UnitPlan& unit) {
    for (const UnitTrace::Part& part : unit.trace->parts(UnitTrace::Phase::backward, unit.policy)) {
      for (const TracedWork* work : part.work) {
        if (work->is_weight_gradient)
          spend(costs_.work_seconds(*work), CostModel::purpose_of(*work, *part.operation, unit.trace->shape()));
      }
    }
    if (!unit.gradients_in_forward) add_to_gradients(unit);
  }

  /// Products of all microbatches but the first read the gradients that they add to. An embedding adds to few rows,
  /// which its trace counts, and fills the whole with zeros if nothing was added before.
  void add_to_gradients(const UnitPlan& unit) {
    for (const size_t group : unit.groups) {
      const bool is_fresh = fresh_gradients_.erase(group) > 0;
      const WeightGroupPlan& weights = plan_.groups[group];
      const auto bytes = static_cast<double>(weights.trained_numel() * size_of(weights.gradient));
      if (unit.role == UnitRole::embedding) {
        if (is_fresh) spend(costs_.memory_seconds(bytes), "embedding");
      } else if (!is_fresh) {
        spend(costs_.exposed_seconds(bytes), "gradient accumulation");
      }
    }
  }

  void spend_phases(const Action& action, std::initializer_list<UnitTrace::Phase> phases) {
    const UnitPlan& unit = unit_of(action);
    for (const UnitTrace::Phase phase : phases) {
      for (const auto& [purpose, seconds] : costs_.phase_seconds(unit, phase)) spend(seconds, purpose);
    }
  }

  const Plan& plan_;
  const Hardware& hardware_;
  CostModel costs_;
  bool keep_events_;
  /// Repetitions of one program: the first ones are simulated, and the last of these represents the others. The first
  /// follows another program and the second the first, so the third is the first that follows one like itself.
  static constexpr int64_t kSimulated = 3;
  struct ProgramRun {
    const Program* program;
    int64_t more;  // repetitions that are not simulated
  };
  std::vector<RepeatedProgram> step_;
  std::vector<ProgramRun> runs_;
  double began_ = 0;
  Seconds seconds_before_;
  size_t program_ = 0, next_ = 0;
  double clock_ = 0;
  std::map<std::string, double> busy_;  // track → when its last call ends
  std::map<Key, Started> started_;
  std::set<size_t> fresh_gradients_;  // weight groups whose next gradient overwrites
};

/// The clocks of all pipeline ranks.
struct Clocks : public Mesh {
  Clocks(const std::vector<Plan>& plans, const Hardware& hardware, bool keep_events) {
    for (const Plan& plan : plans) ranks.emplace_back(plan, hardware, keep_events);
  }
  bool apply(size_t rank, const Effect& effect, const Action& action) override {
    return ranks[rank].apply(effect, action, arrivals);
  }
  void works(size_t rank, const Action& action, Work work) override { ranks[rank].work(action, work); }
  bool ends(size_t rank, const Action&) override {
    ranks[rank].end_action();
    return true;
  }

  std::deque<RankClock> ranks;
  Arrivals arrivals;
};

}  // namespace

SimulatedStep simulate_step(const std::vector<Plan>& plans, const Hardware& hardware, bool keep_events) {
  if (hardware.float8_rate == 0 && !plans.empty() && plans[0].request.float8) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("{} has no float8: name a newer GPU, or leave out what converts layers to float8", hardware.name));
  }
  Clocks clocks(plans, hardware, keep_events);
  MeshEngine engine(clocks);
  for (const RankClock& clock : clocks.ranks) engine.add_rank(clock.actions());
  TITAN_CHECK(engine.run().empty() && "the programs of a plan end");
  SimulatedStep step;
  for (RankClock& clock : clocks.ranks) {
    step.seconds = std::max(step.seconds, clock.end());
    step.ranks.push_back(std::move(clock.result));
  }
  return step;
}

}  // namespace titan
