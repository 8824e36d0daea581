#include "titan/train/state_check.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>

#include "disagreement.h"
#include "finding_exchange.h"
#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/job/updates.h"
#include "titan/train/run.h"

namespace titan {
namespace {

constexpr const char* kWeightState = "weight";
/// A rank reports no more findings than this: memory that is lost as a whole would be a message of megabytes.
constexpr size_t kMostFindings = 16;

/// Adds the time of a scope.
class AddedTime {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AddedTime(Clock::duration& sum) : sum_(sum) {}
  ~AddedTime() { sum_ += Clock::now() - start_; }
  AddedTime(const AddedTime&) = delete;
  AddedTime& operator=(const AddedTime&) = delete;

 private:
  Clock::duration& sum_;
  Clock::time_point start_ = Clock::now();
};

/// "[0:128, 64:128]": rows and columns of a shard.
std::string shard_words(const Box& box) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < box.extent.size(); ++i) {
    ranges.push_back(fmt::format("{}:{}", box.offset[i], box.offset[i] + box.extent[i]));
  }
  return "[" + join(ranges, ", ") + "]";
}

template <class Finding>
void add_finding(std::vector<Finding>& findings, Finding finding, int64_t& left_out) {
  if (findings.size() < kMostFindings) {
    findings.push_back(std::move(finding));
  } else {
    ++left_out;
  }
}

}  // namespace

StateCheck::StateCheck(const Run& run) : run_(run) {
  list_parts();
  list_comparisons();
}

bool StateCheck::is_on() const { return run_.config.debug.replica_check_steps > 0; }

void StateCheck::list_parts() {
  const Run::Model& model = run_.model;
  const Plan& plan = model.plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const std::vector<Parameter*>& members = model.assembly.group_parameters[g];
    for (size_t i = 0; i < members.size(); ++i) {
      parts_.push_back({members[i], kWeightState});
      if (!members[i]->trainable()) continue;
      const UpdateDescription& update = plan.request.updates[plan.groups[g].parameters[i].update];
      for (const std::string& moment : update.moments) parts_.push_back({members[i], moment});
    }
  }
}

void StateCheck::list_comparisons() {
  const Plan& plan = run_.model.plan();
  const MeshCommunicators& communicators = run_.communicators;
  std::map<const Parameter*, std::vector<size_t>> parts_of;
  for (size_t i = 0; i < parts_.size(); ++i) parts_of[parts_[i].parameter].push_back(i);
  // By name, so that all ranks call them in one order.
  std::map<std::string, Comparison> by_name;
  const auto add = [&](const std::string& name, const std::shared_ptr<Communicator>& ranks,
                       const Parameter* parameter) {
    if (!ranks || ranks->size() == 1) return;
    Comparison& comparison = by_name[name];
    comparison.ranks = ranks;
    const std::vector<size_t>& parts = parts_of.at(parameter);
    comparison.parts.insert(comparison.parts.end(), parts.begin(), parts.end());
  };
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const Parameter* parameter = run_.model.assembly.group_parameters[g][i];
      add(group.axes.replicate, communicators.for_weights(group.axes.replicate), parameter);
      if (group.parameters[i].copied_over_tensor) add(communicator_names::kTensor, communicators.tensor, parameter);
      if (group.is_tied) add(communicator_names::kTied, communicators.tied, parameter);
    }
  }
  for (auto& [name, comparison] : by_name) comparisons_.push_back(std::move(comparison));
}

std::string StateCheck::describe() const {
  if (!is_on()) return {};
  std::set<const Parameter*> all, compared;
  for (const Part& part : parts_) all.insert(part.parameter);
  for (const Comparison& comparison : comparisons_) {
    for (const size_t part : comparison.parts) compared.insert(parts_[part].parameter);
  }
  const int64_t steps = run_.config.debug.replica_check_steps;
  const std::string every = steps == 1 ? "step" : fmt::format("{} steps", steps);
  if (compared.empty()) {
    return fmt::format(
        "Weights and moments are checked every {} and before each save: no parameter of this rank has a replica in "
        "this "
        "layout, so the rank only compares its memory with what it wrote",
        every);
  }
  return fmt::format(
      "Weights and moments are checked every {} and before each save: {} of {} parameters of this rank have replicas "
      "to be compared with",
      every, compared.size(), all.size());
}

std::string StateCheck::cost() const {
  if (checks_ == 0) return {};
  const double milliseconds = 1e3 * std::chrono::duration<double>(time_).count() / static_cast<double>(checks_);
  return checks_ == 1 ? fmt::format("1 check of weights and moments took {:.3f} ms", milliseconds)
                      : fmt::format("{} checks of weights and moments took {:.3f} ms each", checks_, milliseconds);
}

std::vector<TensorState> StateCheck::states() const {
  const Run::Model& model = run_.model;
  std::map<const Parameter*, std::vector<at::Tensor>> tensors;
  for (size_t i = 0; i < model.assembly.parameters.size(); ++i) {
    const Parameter* parameter = model.assembly.parameters[i];
    std::vector<at::Tensor>& own = tensors[parameter];
    own.push_back(parameter->master);
    if (!parameter->trainable()) continue;
    for (const at::Tensor& moment : model.optimizer->moments(i)) own.push_back(moment);
  }
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < parts_.size();) {
    const std::vector<at::Tensor>& own = tensors.at(parts_[i].parameter);
    all.insert(all.end(), own.begin(), own.end());
    i += own.size();
  }
  TITAN_CHECK(all.size() == parts_.size() && "the plan names every moment", all.size(), parts_.size());
  return states_of(all);
}

std::vector<bool> StateCheck::unequal_parts(const std::vector<TensorState>& states) const {
  std::vector<bool> unequal(parts_.size());
  for (const Comparison& comparison : comparisons_) {
    const auto count = std::ssize(comparison.parts);
    at::Tensor message = at::empty({2 * count}, at::kLong);
    auto* numbers = message.mutable_data_ptr<int64_t>();
    // The maximum of complements is the complement of the minimum: one message finds both.
    for (const size_t part : comparison.parts) *numbers++ = states[part].hash;
    for (const size_t part : comparison.parts) *numbers++ = ~states[part].hash;
    message = message.to(run_.device.device);
    comparison.ranks->all_reduce({message}, Reduction::max)->wait();
    message = message.cpu();
    const auto* most = message.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      if (most[i] != ~most[count + i]) unequal[comparison.parts[static_cast<size_t>(i)]] = true;
    }
  }
  return unequal;
}

bool StateCheck::is_on_any_rank(bool here) const {
  if (!run_.communicators.world) return here;
  const at::Tensor any = to_device_soon({here ? 1.0 : 0.0}, run_.device.device);
  run_.communicators.world->all_reduce({any}, Reduction::max)->wait();
  return any.item<double>() != 0;
}

void StateCheck::before_change() {
  if (!written_) return;
  const AddedTime timed(time_);
  used_ = states();
  changed_copies_ = run_.model.assembly.executor->changed_copies();
}

void StateCheck::after_step(int64_t step, bool saves) {
  const AddedTime timed(time_);
  end_check(step);
  const int64_t period = run_.config.debug.replica_check_steps;
  if (!is_on()) return;
  const bool is_due = step % period == 0;
  if ((is_due || saves) && !(written_ && step_ == step)) begin_check(step, saves);
}

void StateCheck::end_check(int64_t step) {
  if (!used_) return;
  RankFindings own = changes();
  if (is_on_any_rank(!own.changed.empty())) fail(step, std::move(own));
  last_agreeing_ = step_;
  ++checks_;
  written_.reset();
  used_.reset();
}

void StateCheck::begin_check(int64_t step, bool saves) {
  std::vector<TensorState> now = states();
  compare(step, now);
  if (saves) refuse_non_finite(step, now);
  written_ = std::move(now);
  step_ = step;
}

void StateCheck::compare(int64_t step, const std::vector<TensorState>& states) {
  const std::vector<bool> unequal = unequal_parts(states);
  if (!is_on_any_rank(std::find(unequal.begin(), unequal.end(), true) != unequal.end())) return;
  RankFindings own{run_.world.rank, host_name(), {}, {}, 0};
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!unequal[i]) continue;
    const Part& part = parts_[i];
    add_finding(own.unequal,
                {{part.parameter->name(), part.state}, shard_words(part.parameter->shard_box()), states[i].hash},
                own.left_out);
  }
  fail(step, std::move(own));
}

void StateCheck::explain(int64_t step) {
  if (is_on()) compare(step, states());
}

RankFindings StateCheck::changes() const {
  RankFindings own{run_.world.rank, host_name(), {}, {}, 0};
  for (size_t i = 0; i < parts_.size(); ++i) {
    if ((*written_)[i] == (*used_)[i]) continue;
    add_finding(own.changed, {parts_[i].parameter->name(), parts_[i].state}, own.left_out);
  }
  for (const Parameter* parameter : changed_copies_) {
    add_finding(own.changed, {parameter->name(), "compute copy"}, own.left_out);
  }
  return own;
}

void StateCheck::refuse_non_finite(int64_t step, const std::vector<TensorState>& states) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!states[i].is_finite) names.push_back(StateName{parts_[i].parameter->name(), parts_[i].state}.words());
  }
  if (!is_on_any_rank(!names.empty())) return;
  throw Error(
      ExitCode::non_finite,
      fmt::format("step {} is not saved: not every number is finite in {}; start again from the last checkpoint "
                  "with a lower {}",
                  step, run_.findings->names_by_rank(names), rates_to_lower(run_.config.optimizer)));
}

void StateCheck::fail(int64_t step, RankFindings own) {
  // Rank 0 writes the file before it answers: the first rank that fails ends the others.
  const std::string found = run_.findings->decide(json_text(to_json(own)), [&](const std::vector<std::string>& said) {
    std::vector<RankFindings> all;
    for (size_t rank = 0; rank < said.size(); ++rank) {
      read_words(said[rank], rank, [&](const nlohmann::json& words) { all.push_back(rank_findings_from_json(words)); });
    }
    const NamedRanks found = judge(all);
    record_finding(run_, step, last_agreeing_, found);
    return found.text;
  });
  throw Error(
      ExitCode::silent_corruption,
      fmt::format("step {}: {}; memory or a processor is at fault, not the settings. Weights and moments last "
                  "agreed after step {}: checkpoints up to it can be trusted, the state now is not saved. Start "
                  "again from there, and without that host if it is named again",
                  step, found, last_agreeing_));
}

}  // namespace titan
