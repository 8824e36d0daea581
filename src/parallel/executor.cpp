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
    if (plan_.units[u].gradients_in_forward) gradient_storage(u);
    WeightGradientSink& sink = deferred_ ? static_cast<WeightGradientSink&>(queue_) : immediate_;
    states[u].context = std::make_unique<UnitContext>(UnitMode::train, plan_.units[u].policy, sink);
    states[u].context->count_saved = options_.count_saved_bytes;
    states[u].context->recorder.set_hash_check(options_.check_kept_tensors);
    stream = runner_->forward(*chain_[u], as_computed_in(u, std::move(stream)), batch, states[u]);
    release(u, UsePhase::forward, microbatch);
  }
  return stream[0];
}

void Executor::backward(const BatchContext& batch, int64_t microbatch, bool is_last) {
  std::vector<UnitState>& states = states_of(microbatch);
  Stream gradients{at::ones({}, at::TensorOptions(batch.labels.device()).dtype(at::kDouble))};
  for (size_t u = chain_.size(); u-- > 0;) {
    const bool reads_weights = plan_.units[u].weights_in_backward;
    if (reads_weights) acquire(u, UsePhase::backward, microbatch);
    if (u > 0 && plan_.units[u - 1].weights_in_backward) prefetch(u - 1, UsePhase::backward, microbatch);
    gradient_storage(u);
    // The loss is in fp64 whatever its unit computes in.
    if (u + 1 < chain_.size()) gradients = as_computed_in(u, std::move(gradients));
    gradients = runner_->backward(*chain_[u], gradients, batch, states[u]);
    if (reads_weights) release(u, UsePhase::backward, microbatch);
    for (size_t group : plan_.units[u].groups) {
      if (plan_.groups[group].reduce_after == u && !deferred_) reduce(group, is_last);
    }
  }
  settle();
}

void Executor::run_weight_gradients(bool is_last) {
  queue_.run();
  for (size_t group = plan_.groups.size(); group-- > 0;) reduce(group, is_last);
  settle();
}

// A group's reduction goes on while the next unit's backward runs, and is over before the one after that needs memory.
void Executor::reduce(size_t group, bool is_last) {
  residencies_[group]->reduce(is_last);
  if (!is_last) return;
  settle();
  reducing_ = group;
}

void Executor::settle() {
  if (!reducing_) return;
  const size_t group = *reducing_;
  reducing_.reset();
  residencies_[group]->settle();
  if (group_reduced_) group_reduced_(group);
}

at::Tensor Executor::infer(const BatchContext& batch, UnitMode mode) {
  at::NoGradGuard no_graph;
  Stream stream;
  for (size_t u = 0; u < chain_.size(); ++u) {
    acquire(u, UsePhase::forward, 0);
    if (u + 1 < chain_.size()) prefetch(u + 1, UsePhase::forward, 0);
    UnitContext context(mode, RecomputePolicy::none(), immediate_);
    stream = chain_[u]->forward(as_computed_in(u, std::move(stream)), batch, context);
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

void Executor::gradient_storage(size_t unit) {
  for (size_t group : plan_.units[unit].groups) residencies_[group]->gradient_storage();
}

Stream Executor::as_computed_in(size_t unit, Stream stream) const {
  for (at::Tensor& tensor : stream) {
    if (tensor.defined()) tensor = tensor.to(scalar_type(plan_.units[unit].compute));
  }
  return stream;
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
