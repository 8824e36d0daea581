#include "titan/parallel/executor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/profile_range.h"

namespace titan {

Executor::Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain,
                   std::vector<std::unique_ptr<Residency>> residencies, std::unique_ptr<UnitRunner> runner,
                   ExecutorOptions options, std::unique_ptr<MicrobatchGraphs> graphs)
    : plan_(plan),
      residencies_(std::move(residencies)),
      runner_(std::move(runner)),
      graphs_(std::move(graphs)),
      options_(std::move(options)) {
  for (const UnitPlan& unit : plan_.units) chain_.push_back(chain[unit.chain_index]);
  TITAN_CHECK(residencies_.size() == plan_.groups.size(), residencies_.size(), plan_.groups.size());
  scales_.wanted = wants_magnitudes();
  if (!plan_.request.offload_activations) return;
  TITAN_CHECK(options_.activation_link && "offloaded activations have a link to cross");
  offload_ = std::make_unique<ActivationOffload>(options_.activation_link);
}

bool Executor::wants_magnitudes() const {
  return options_.kernels && plan_.request.float8 && plan_.request.float8->recipe == Float8Recipe::tensorwise;
}

at::Tensor Executor::forward(const BatchContext& batch, int64_t microbatch) {
  return forward_stage(0, {}, batch, microbatch)[0];
}

Stream Executor::forward_stage(size_t stage, Stream stream, const BatchContext& batch, int64_t microbatch) {
  std::vector<UnitState>& states = states_of(microbatch);
  const StagePlan& span = plan_.stages[stage];
  scales_.forget_gone();
  WeightGradientSink& sink =
      deferred_ ? static_cast<WeightGradientSink&>(deferred_products_[{stage, microbatch}]) : immediate_;
  for (size_t u = span.first; u < span.last; ++u) {
    const ProfileRange range("forward", plan_.units[u].name);
    acquire(u, UsePhase::forward, microbatch);
    if (u + 1 < span.last) prefetch(u + 1, UsePhase::forward, microbatch);
    if (plan_.units[u].gradients_in_forward) gradient_storage(u);
    states[u].context = training_context(u, sink);
    stream = runner_->forward(*chain_[u], as_computed_in(u, std::move(stream)), batch, states[u]);
    if (plan_.units[u].offloaded) states[u].put_away = offload_->put_away(tensors_of(states[u]));
    release(u, UsePhase::forward, microbatch);
  }
  return stream;
}

std::unique_ptr<UnitContext> Executor::training_context(size_t unit, WeightGradientSink& sink) const {
  auto context = std::make_unique<UnitContext>(UnitMode::train, plan_.units[unit].policy, sink);
  hand_kernels(*context);
  context->count_saved = options_.count_saved_bytes;
  context->recorder.set_hash_check(options_.check_kept_tensors);
  return context;
}

void Executor::hand_kernels(UnitContext& context) const {
  context.kernels = options_.kernels.get();
  context.loss_kernels = options_.loss_kernels.get();
  context.scales = scales_;
}

Stream Executor::loss_gradient(const BatchContext& batch) {
  return {at::ones({}, at::TensorOptions(batch.labels.device()).dtype(at::kDouble))};
}

void Executor::backward(const BatchContext& batch, int64_t microbatch, bool is_last) {
  backward_units(0, loss_gradient(batch), batch, microbatch, [&](size_t unit) {
    for (size_t group : plan_.units[unit].groups) {
      if (plan_.groups[group].reduce_after == unit && !deferred_) reduce(group, is_last);
    }
  });
  settle();
}

Stream Executor::backward_stage(size_t stage, Stream gradients, const BatchContext& batch, int64_t microbatch) {
  return backward_units(stage, std::move(gradients), batch, microbatch, [](size_t) {});
}

Stream Executor::backward_units(size_t stage, Stream gradients, const BatchContext& batch, int64_t microbatch,
                                const std::function<void(size_t unit)>& after_unit) {
  std::vector<UnitState>& states = states_of(microbatch);
  const StagePlan& span = plan_.stages[stage];
  for (size_t u = span.last; u-- > span.first;) {
    const ProfileRange range("backward", plan_.units[u].name);
    const bool reads_weights = plan_.units[u].weights_in_backward;
    if (reads_weights) acquire(u, UsePhase::backward, microbatch);
    if (u > span.first && plan_.units[u - 1].weights_in_backward) prefetch(u - 1, UsePhase::backward, microbatch);
    gradient_storage(u);
    if (plan_.units[u].offloaded) offload_->bring_back(states[u].put_away, tensors_of(states[u]));
    if (u > span.first && plan_.units[u - 1].offloaded) offload_->start_back(states[u - 1].put_away);
    gradients = runner_->backward(*chain_[u], gradients_into(u, std::move(gradients)), batch, states[u]);
    if (reads_weights) release(u, UsePhase::backward, microbatch);
    after_unit(u);
  }
  return gradients;
}

// The loss is in fp64 whatever its unit computes in.
Stream Executor::gradients_into(size_t unit, Stream gradients) const {
  return plan_.units[unit].chain_index + 1 < plan_.chain_length ? as_computed_in(unit, std::move(gradients))
                                                                : gradients;
}

// Weights that stay are acquired once for both directions, and nothing is reduced before all gradients are there.
at::Tensor Executor::forward_and_backward(const BatchContext& batch, bool is_last) {
  scales_.forget_gone();
  for (size_t u = 0; u < chain_.size(); ++u) {
    acquire(u, UsePhase::forward, 0);
    gradient_storage(u);
  }
  at::Tensor loss;
  {
    const ProfileRange range("microbatch");  // the units' own are silent when graphs are replayed
    loss = graphs_->run(batch, [this](const BatchContext& placed) { return compute(placed); });
  }
  for (size_t u = chain_.size(); u-- > 0;) {
    release(u, UsePhase::forward, 0);
    for (size_t group : plan_.units[u].groups) {
      if (plan_.groups[group].reduce_after == u) reduce(group, is_last);
    }
  }
  settle();
  return loss;
}

at::Tensor Executor::compute(const BatchContext& batch) {
  std::vector<UnitState>& states = states_of(0);
  Stream stream;
  for (size_t u = 0; u < chain_.size(); ++u) {
    const ProfileRange range("forward", plan_.units[u].name);
    last_use_ = Use{u, UsePhase::forward, 0};
    states[u].context = training_context(u, immediate_);
    stream = runner_->forward(*chain_[u], as_computed_in(u, std::move(stream)), batch, states[u]);
  }
  at::Tensor loss = stream[0];
  Stream gradients = loss_gradient(batch);
  for (size_t u = chain_.size(); u-- > 0;) {
    const ProfileRange range("backward", plan_.units[u].name);
    last_use_ = Use{u, UsePhase::backward, 0};
    gradients = runner_->backward(*chain_[u], gradients_into(u, std::move(gradients)), batch, states[u]);
  }
  return loss;
}

void Executor::weight_gradients(size_t stage, int64_t microbatch) {
  const auto found = deferred_products_.find({stage, microbatch});
  if (found == deferred_products_.end()) return;
  const ProfileRange range("weight gradients");
  found->second.run();
  deferred_products_.erase(found);
}

void Executor::reduce_stage(size_t stage) {
  for (size_t group = plan_.groups.size(); group-- > 0;) {
    if (plan_.stage_of(plan_.groups[group].reduce_after) == stage) reduce(group, /*is_last=*/true);
  }
  settle();
}

void Executor::add_twins() {
  for (size_t group = plan_.groups.size(); group-- > 0;) {
    if (!plan_.groups[group].has_twin) continue;
    residencies_[group]->add_twin();
    reduced(group);
  }
}

// A group's reduction goes on while the next unit's backward runs, and its slot is free before the one after that needs
// it. A second leg, over replicas, goes on while one more unit's backward runs. What nobody adds to is complete at
// once.
void Executor::reduce(size_t group, bool is_last) {
  const ProfileRange range("reduce");
  residencies_[group]->reduce(is_last);
  if (!is_last) return;
  advance();
  reducing_ = group;
  if (!residencies_[group]->reduces()) advance();
}

void Executor::advance() {
  const std::optional<size_t> newest = std::exchange(reducing_, std::nullopt);
  const bool goes_on = newest && residencies_[*newest]->advance();
  if (replicating_) settle(*std::exchange(replicating_, std::nullopt));
  if (!newest) return;
  if (goes_on) {
    replicating_ = newest;
  } else {
    settle(*newest);
  }
}

void Executor::settle() {
  advance();
  advance();
}

void Executor::settle(size_t group) {
  const ProfileRange range("reduce, end");
  residencies_[group]->settle();
  if (!plan_.groups[group].has_twin) reduced(group);
}

std::shared_ptr<const void> Executor::on_group_reduced(std::function<void(size_t group)> callback) {
  const auto kept = std::make_shared<const std::function<void(size_t)>>(std::move(callback));
  std::erase_if(group_reduced_, [](const auto& earlier) { return earlier.expired(); });
  group_reduced_.push_back(kept);
  return kept;
}

void Executor::reduced(size_t group) {
  for (const auto& listener : group_reduced_) {
    if (const auto callback = listener.lock()) (*callback)(group);
  }
  send_home(group);
}

std::vector<at::Tensor> Executor::wait_home(const std::vector<at::Tensor>& numbers) {
  if (!options_.weight_link) return numbers;
  const ProfileRange range("gradients to the host");
  std::vector<at::Tensor> here = options_.weight_link->wait_home(numbers);
  for (auto& residency : residencies_) residency->arrive();
  return here;
}

at::Tensor Executor::infer(const BatchContext& batch, UnitMode mode) { return infer_stage(0, {}, batch, mode)[0]; }

Stream Executor::infer_stage(size_t stage, Stream stream, const BatchContext& batch, UnitMode mode) {
  at::NoGradGuard no_graph;
  const StagePlan& span = plan_.stages[stage];
  scales_.forget_gone();
  for (size_t u = span.first; u < span.last; ++u) {
    const ProfileRange range("evaluate", plan_.units[u].name);
    acquire(u, UsePhase::forward, 0);
    if (u + 1 < span.last) prefetch(u + 1, UsePhase::forward, 0);
    UnitContext context(mode, RecomputePolicy::none(), immediate_);
    hand_kernels(context);
    stream = chain_[u]->forward(as_computed_in(u, std::move(stream)), batch, context);
    release(u, UsePhase::forward, 0);
  }
  return stream;
}

void Executor::finish_step() {
  runner_->finish_step();
  if (graphs_) graphs_->finish_step();
  for (auto& residency : residencies_) residency->finish_step();
}

void Executor::weights_changed() {
  for (auto& residency : residencies_) residency->weights_changed();
}

int64_t Executor::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& residency : residencies_) bytes += residency->gradient_bytes();
  return bytes;
}

void Executor::scale_weights(Communicator* gather, Communicator* tensor) {
  std::vector<Residency*> owners;
  std::vector<at::Tensor> magnitudes;
  for (auto& residency : residencies_) {
    at::Tensor mine = residency->largest_magnitudes();
    if (!mine.defined()) continue;
    owners.push_back(residency.get());
    magnitudes.push_back(std::move(mine));
  }
  if (owners.empty()) return;
  const at::Tensor largest = at::cat(magnitudes);
  for (Communicator* group : {gather, tensor}) {
    if (group) group->all_reduce({largest}, Reduction::max)->wait();
  }
  int64_t first = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    const int64_t count = magnitudes[i].size(0);
    owners[i]->set_largest_magnitudes(largest.narrow(0, first, count));
    first += count;
  }
}

int64_t Executor::saved_bytes(size_t unit, int64_t microbatch) const {
  const UnitState& state = states_.at(static_cast<size_t>(microbatch)).at(unit);
  TITAN_CHECK(options_.count_saved_bytes && state.context, unit, microbatch);
  SavedLedger ledger = state.context->saved;
  for (const at::Tensor& leaf : state.leaves) {
    if (leaf.defined()) ledger.add(leaf);  // those on the host are not
  }
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

std::string Executor::position() const {
  if (!last_use_) return {};
  return fmt::format("{} of {}", last_use_->phase == UsePhase::forward ? "forward" : "backward",
                     plan_.units[last_use_->unit].name);
}

std::vector<at::Tensor*> Executor::tensors_of(UnitState& state) {
  std::vector<at::Tensor*> tensors;
  for (at::Tensor& leaf : state.leaves) tensors.push_back(&leaf);
  const std::vector<at::Tensor*> kept = state.context->recorder.kept_places();
  tensors.insert(tensors.end(), kept.begin(), kept.end());
  return tensors;
}

void Executor::acquire(size_t unit, UsePhase phase, int64_t microbatch) {
  const ProfileRange range("gather");
  last_use_ = Use{unit, phase, microbatch};
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
