#include "titan/plan/unit_trace.h"

#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

bool has(const std::vector<TracedTensor>& tensors, TracedTensor tensor) {
  return std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
}

}  // namespace

bool TraceShape::in_float8(const std::string& parameter) const {
  return std::find(float8_parameters.begin(), float8_parameters.end(), parameter) != float8_parameters.end();
}

bool TraceShape::trains(const std::string& parameter) const {
  return std::find(frozen_parameters.begin(), frozen_parameters.end(), parameter) == frozen_parameters.end();
}

TracedTensor UnitTrace::tensor(int64_t bytes, std::optional<ResultKind> kind, int ordinal) {
  tensors_.push_back({bytes, kind, ordinal, kNoTensor});
  return static_cast<TracedTensor>(tensors_.size()) - 1;
}

TracedTensor UnitTrace::in_place_of(TracedTensor other, std::optional<ResultKind> kind, int ordinal) {
  tensors_.push_back({bytes(other), kind, ordinal, other});
  return static_cast<TracedTensor>(tensors_.size()) - 1;
}

/// The tensors that hold memory now; each counts once, whatever its number of holders.
class UnitTrace::Live {
 public:
  explicit Live(const UnitTrace& trace) : trace_(trace), holders_(trace.tensors_.size()) {}

  void hold(TracedTensor tensor) {
    if (holders_[static_cast<size_t>(tensor)]++ == 0) now_ += trace_.bytes(tensor);
    most_ = std::max(most_, now_);
  }
  void release(TracedTensor tensor) {
    int& holders = holders_[static_cast<size_t>(tensor)];
    TITAN_CHECK(holders > 0, tensor);
    if (--holders == 0) now_ -= trace_.bytes(tensor);
  }
  void add(int64_t bytes) { most_ = std::max(most_, now_ += bytes); }
  void remove(int64_t bytes) { now_ -= bytes; }
  void pass_through(int64_t bytes) { most_ = std::max(most_, now_ + bytes); }
  int64_t now() const { return now_; }
  int64_t most() const { return most_; }

 private:
  const UnitTrace& trace_;
  std::vector<int> holders_;
  int64_t now_ = 0, most_ = 0;
};

Keep UnitTrace::fate(TracedTensor tensor, const RecomputePolicy& policy) const {
  const Tensor& t = tensors_[static_cast<size_t>(tensor)];
  return t.kind ? policy.of(*t.kind, t.ordinal) : Keep::recompute;
}

bool UnitTrace::recomputes(const TracedOperation& operation, const RecomputePolicy& policy) const {
  return !operation.is_closing && std::any_of(operation.results.begin(), operation.results.end(),
                                              [&](TracedTensor t) { return fate(t, policy) == Keep::recompute; });
}

TracedTensor UnitTrace::memory_of(TracedTensor tensor, const RecomputePolicy& policy) const {
  const TracedTensor other = tensors_[static_cast<size_t>(tensor)].in_place_of;
  const bool in_place = other != kNoTensor && !(policy.checkpointed() && fate(other, policy) == Keep::keep);
  return in_place ? other : tensor;
}

/// For each piece of memory: the index of the last operation that reads or writes it.
std::vector<size_t> UnitTrace::last_uses(const RecomputePolicy& policy) const {
  std::vector<size_t> last(tensors_.size(), 0);
  for (size_t i = 0; i < operations_.size(); ++i) {
    for (const auto* list : {&operations_[i].inputs, &operations_[i].results}) {
      for (const TracedTensor tensor : *list) last[static_cast<size_t>(memory_of(tensor, policy))] = i;
    }
  }
  return last;
}

void UnitTrace::hold_saved(Live& live, const TracedOperation& operation, const RecomputePolicy& policy,
                           bool release) const {
  const bool otherwise = !operation.saved_in_replay.empty() && replays(operation, policy);
  for (const TracedTensor tensor : otherwise ? operation.saved_in_replay : operation.saved) {
    TracedTensor value = tensor;
    const auto made = [&]() -> const auto& { return tensors_[static_cast<size_t>(value)]; };
    while (!made().kind && made().in_place_of != kNoTensor) value = made().in_place_of;
    TITAN_CHECK(!(policy.checkpointed() && fate(value, policy) == Keep::placeholder) &&
                    "backward reads a result that the replay skips",
                operation.name);
    release ? live.release(memory_of(tensor, policy)) : live.hold(memory_of(tensor, policy));
  }
  if (!policy.checkpointed()) live.add(release ? -operation.saved_beside : operation.saved_beside);
}

// `saves`: operations keep what their backward reads. The caller holds the unit's input throughout.
void UnitTrace::run_forward(Live& live, const RecomputePolicy& policy, bool saves, bool is_replay) const {
  const std::vector<size_t> last = last_uses(policy);
  const bool keeps_results = policy.checkpointed() && !is_replay;
  std::vector<bool> held(tensors_.size());
  std::vector<TracedTensor> leaving;
  for (const TracedTensor output : outputs_) leaving.push_back(memory_of(output, policy));
  for (size_t i = 0; i < operations_.size(); ++i) {
    const TracedOperation& operation = operations_[i];
    for (const TracedTensor result : operation.results) {
      const TracedTensor memory = memory_of(result, policy);
      const bool is_there = is_replay && (operation.is_closing || fate(result, policy) != Keep::recompute);
      if (is_there || held[static_cast<size_t>(memory)] || has(inputs_, memory)) continue;
      live.hold(memory);
      held[static_cast<size_t>(memory)] = true;
    }
    if (saves) hold_saved(live, operation, policy, /*release=*/false);
    if (!is_replay || recomputes(operation, policy)) {
      live.pass_through(operation.forward_scratch + (saves || keeps_results ? operation.training_scratch : 0));
    }
    for (const TracedTensor result : operation.results) {
      if (keeps_results && fate(result, policy) == Keep::keep) live.hold(memory_of(result, policy));
    }
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (!held[t] || last[t] > i || has(leaving, static_cast<TracedTensor>(t))) continue;
      live.release(static_cast<TracedTensor>(t));
      held[t] = false;
    }
  }
}

int64_t UnitTrace::saved_bytes(const RecomputePolicy& policy) const {
  Live live(*this);
  for (const TracedTensor input : inputs_) live.hold(input);
  for (const TracedOperation& operation : operations_) {
    if (!policy.checkpointed()) hold_saved(live, operation, policy, /*release=*/false);
    for (const TracedTensor result : operation.results) {
      const bool is_kept = policy.checkpointed() && fate(result, policy) == Keep::keep;
      if (is_kept) live.hold(memory_of(result, policy));
    }
  }
  return live.now();
}

int64_t UnitTrace::forward_peak(const RecomputePolicy& policy) const {
  Live live(*this);
  for (const TracedTensor input : inputs_) live.hold(input);
  run_forward(live, policy, /*saves=*/!policy.checkpointed(), /*is_replay=*/false);
  return live.most();
}

int64_t UnitTrace::evaluation_peak() const {
  Live live(*this);
  for (const TracedTensor input : inputs_) live.hold(input);
  run_forward(live, RecomputePolicy::none(), /*saves=*/false, /*is_replay=*/false);
  return live.most();
}

int64_t UnitTrace::backward_peak(const RecomputePolicy& policy) const {
  int64_t most = 0;
  if (policy.checkpointed()) {
    Live replay(*this);
    // While a replay runs, memory also holds what forward saved and the gradients of the outputs. The inputs are among
    // the saved tensors; they are counted below instead.
    replay.add(saved_bytes(policy));
    for (const TracedTensor output : outputs_) replay.add(bytes(output));
    for (const TracedTensor input : inputs_) {
      replay.remove(bytes(input));
      replay.hold(input);
    }
    for (const TracedOperation& operation : operations_) {
      for (const TracedTensor result : operation.results) {
        if (fate(result, policy) != Keep::keep) continue;
        replay.remove(bytes(result));  // already counted as saved
        replay.hold(memory_of(result, policy));
      }
    }
    run_forward(replay, policy, /*saves=*/true, /*is_replay=*/true);
    most = replay.most();
  }
  Live saved(*this);
  for (const TracedTensor input : inputs_) saved.hold(input);
  for (const TracedOperation& operation : operations_) hold_saved(saved, operation, policy, /*release=*/false);
  run_backward(saved, policy);
  return std::max(most, saved.most());
}

int64_t UnitTrace::deferred_bytes(const RecomputePolicy& policy) const {
  Live live(*this);
  for (const TracedOperation& operation : operations_) {
    if (!operation.defers) continue;
    hold_saved(live, operation, policy, /*release=*/false);
    for (const TracedTensor result : operation.results) live.add(bytes(result));
  }
  return live.now();
}

// Gradients are as large as their tensors. A gradient is allocated by the backward of an operation that reads the
// tensor, and freed after the backward of the operation that made it.
void UnitTrace::run_backward(Live& live, const RecomputePolicy& policy) const {
  std::vector<bool> has_gradient(tensors_.size());
  auto make = [&](TracedTensor tensor) {
    if (has_gradient[static_cast<size_t>(tensor)]) return;
    live.add(bytes(tensor));
    has_gradient[static_cast<size_t>(tensor)] = true;
  };
  auto drop = [&](TracedTensor tensor) {
    if (!has_gradient[static_cast<size_t>(tensor)]) return;
    live.remove(bytes(tensor));
    has_gradient[static_cast<size_t>(tensor)] = false;
  };
  for (const TracedTensor output : outputs_) make(output);
  for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation) {
    auto release = [&] {
      for (const TracedTensor result : operation->results) drop(result);
      hold_saved(live, *operation, policy, /*release=*/true);
    };
    if (operation->passes_gradient) release();
    const size_t made =
        operation->shares_gradient ? std::min<size_t>(1, operation->inputs.size()) : operation->inputs.size();
    for (size_t i = 0; i < made; ++i) make(operation->inputs[i]);
    live.pass_through(operation->backward_scratch);
    if (!operation->passes_gradient) release();
  }
}

std::vector<UnitTrace::Part> UnitTrace::parts(Phase phase, const RecomputePolicy& policy) const {
  std::vector<Part> all;
  const bool is_replay = phase == Phase::replay;
  if (is_replay && !policy.checkpointed()) return all;
  for (const TracedOperation& operation : operations_) {
    Part part{&operation, {}, {}};
    const bool runs = !is_replay || recomputes(operation, policy);
    for (const TracedWork& work : phase == Phase::backward ? operation.backward : operation.forward) {
      const bool is_wanted = !is_replay || work.makes == kNoTensor || fate(work.makes, policy) == Keep::recompute;
      const bool is_spared = work.spared_by_replay && replays(operation, policy);
      if (runs && is_wanted && !is_spared) part.work.push_back(&work);
    }
    for (const TracedMessage& message :
         phase == Phase::backward ? operation.backward_messages : operation.forward_messages) {
      if (runs || message.replayed == WhenReplayed::always) part.messages.push_back(&message);
    }
    if (!part.work.empty() || !part.messages.empty()) all.push_back(std::move(part));
  }
  if (phase == Phase::backward) std::reverse(all.begin(), all.end());
  return all;
}

}  // namespace titan
