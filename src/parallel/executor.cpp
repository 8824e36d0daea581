#include "titan/parallel/executor.h"

#include <ATen/ops/ones.h>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {

Executor::Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain,
                   std::vector<std::unique_ptr<Residency>> residencies, std::unique_ptr<UnitRunner> runner,
                   ExecutorOptions options)
    : plan_(plan),
      chain_(chain.begin(), chain.end()),
      residencies_(std::move(residencies)),
      runner_(std::move(runner)),
      options_(options) {
  TITAN_CHECK(chain_.size() == plan_.units.size(), chain_.size(), plan_.units.size());
  TITAN_CHECK(residencies_.size() == plan_.groups.size(), residencies_.size(), plan_.groups.size());
}

at::Tensor Executor::forward(const BatchContext& batch, int64_t microbatch) {
  std::vector<UnitState>& states = states_of(microbatch);
  Stream stream;
  for (size_t u = 0; u < chain_.size(); ++u) {
    acquire(u, UsePhase::forward, microbatch);
    if (u + 1 < chain_.size()) prefetch(u + 1, UsePhase::forward, microbatch);
    for (size_t group : plan_.units[u].groups) residencies_[group]->gradient_storage();
    WeightGradientSink& sink = deferred_ ? static_cast<WeightGradientSink&>(queue_) : immediate_;
    states[u].context = std::make_unique<UnitContext>(UnitMode::train, plan_.units[u].policy, sink);
    states[u].context->count_saved = options_.count_saved_bytes;
    states[u].context->recorder.set_hash_check(options_.check_kept_tensors);
    stream = runner_->forward(*chain_[u], stream, batch, states[u]);
    release(u, UsePhase::forward, microbatch);
  }
  return stream[0];
}

void Executor::backward(const BatchContext& batch, int64_t microbatch, bool is_last) {
  std::vector<UnitState>& states = states_of(microbatch);
  Stream gradients{at::ones({}, at::TensorOptions(batch.labels.device()).dtype(at::kDouble))};
  for (size_t u = chain_.size(); u-- > 0;) {
    acquire(u, UsePhase::backward, microbatch);
    if (u > 0) prefetch(u - 1, UsePhase::backward, microbatch);
    gradients = runner_->backward(*chain_[u], gradients, batch, states[u]);
    release(u, UsePhase::backward, microbatch);
    for (size_t group : plan_.units[u].groups) {
      if (plan_.groups[group].reduce_after == u && !deferred_) reduce(group, is_last);
    }
  }
}

void Executor::run_weight_gradients(bool is_last) {
  queue_.run();
  for (size_t group = plan_.groups.size(); group-- > 0;) reduce(group, is_last);
}

void Executor::reduce(size_t group, bool is_last) {
  residencies_[group]->reduce(is_last);
  if (is_last && group_reduced_) group_reduced_(group);
}

at::Tensor Executor::infer(const BatchContext& batch, UnitMode mode) {
  at::NoGradGuard no_graph;
  Stream stream;
  for (size_t u = 0; u < chain_.size(); ++u) {
    acquire(u, UsePhase::forward, 0);
    if (u + 1 < chain_.size()) prefetch(u + 1, UsePhase::forward, 0);
    UnitContext context(mode, RecomputePolicy::none(), immediate_);
    stream = chain_[u]->forward(stream, batch, context);
    release(u, UsePhase::forward, 0);
  }
  return stream[0];
}

void Executor::finish_step() {
  for (auto& residency : residencies_) residency->finish_step();
}

void Executor::weights_changed() {
  for (auto& residency : residencies_) residency->weights_changed();
}

int64_t Executor::saved_bytes(size_t unit, int64_t microbatch) const {
  const UnitState& state = states_.at(static_cast<size_t>(microbatch)).at(unit);
  TITAN_CHECK(options_.count_saved_bytes && state.context, unit, microbatch);
  SavedLedger ledger = state.context->saved;
  for (const at::Tensor& leaf : state.leaves) ledger.add(leaf);
  for (const at::Tensor& kept : state.context->recorder.kept()) {
    if (kept.defined()) ledger.add(kept);
  }
  return ledger.bytes();
}

void Executor::acquire(size_t unit, UsePhase phase, int64_t microbatch) {
  for (size_t group : plan_.units[unit].groups) residencies_[group]->acquire({unit, phase, microbatch});
}

void Executor::release(size_t unit, UsePhase phase, int64_t microbatch) {
  for (size_t group : plan_.units[unit].groups) residencies_[group]->release({unit, phase, microbatch});
}

void Executor::prefetch(size_t unit, UsePhase phase, int64_t microbatch) {
  for (size_t group : plan_.units[unit].groups) residencies_[group]->prefetch({unit, phase, microbatch});
}

std::vector<UnitState>& Executor::states_of(int64_t microbatch) {
  auto index = static_cast<size_t>(microbatch);
  if (states_.size() <= index) states_.resize(index + 1);
  states_[index].resize(chain_.size());
  return states_[index];
}

}  // namespace titan
