#include "titan/parallel/executor.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/profile_range.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

at::TensorOptions loss_options(const BatchContext& batch) {
  return at::TensorOptions(batch.labels.device()).dtype(at::kDouble);
}

/// Units may compute in different dtypes (training.keep_fp32): casts a unit's input to its compute dtype.
HiddenStates as_computed_in(const UnitPlan& unit, HiddenStates hidden) {
  for (at::Tensor& tensor : hidden) {
    if (tensor.defined()) tensor = tensor.to(scalar_type(unit.compute));
  }
  return hidden;
}

/// Everything a checkpointed unit holds from its forward to its backward.
std::vector<at::Tensor*> tensors_of(UnitState& state) {
  std::vector<at::Tensor*> tensors;
  for (at::Tensor& leaf : state.leaves) tensors.push_back(&leaf);
  const std::vector<at::Tensor*> kept = state.context->recorder.kept_places();
  tensors.insert(tensors.end(), kept.begin(), kept.end());
  return tensors;
}

/// What ranks that do the same work compute in the same time.
bool is_computation(ActionKind kind) {
  using enum ActionKind;
  return kind == forward || kind == backward || kind == weight_gradient || kind == graph;
}

/// The key of the input or output of a unit's forward, or of its backward.
StageMessages::Key key_of(const Action& action, bool backward) { return {backward, action.stage, action.microbatch}; }

/// The name of an instruction's range in a profile; empty: no range.
std::string_view range_name(ActionKind kind) {
  using enum ActionKind;
  switch (kind) {
    // clang-format off
    case forward: return "forward";
    case backward: return "backward";
    case evaluate: return "evaluate";
    case weight_gradient: return "weight gradients";
    case graph: return "microbatch";  // the units' ranges are absent when graphs are replayed
    case refresh: case unshard: case wait_unshard: case scale: return "gather";
    case close_gradient: case reduce_scatter: case all_reduce: return "reduce";
    case wait_reduce: case reduce_partial: case add_tied: return "reduce, end";
    case wait_forward: case wait_backward: case wait_sends: return "wait for a stage";
    case wait_host: return "gradients to the host";
    case squares: case norm: case control: return "gradient norm";
    case collect: case transform: case wait_transform: case step: return "optimizer";
    default: return is_transfer(kind) || kind == batch ? "send and receive" : "";
      // clang-format on
  }
}

}  // namespace

Executor::Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain, WeightStores weights,
                   std::unique_ptr<UnitRunner> runner, ExecutorOptions options,
                   std::unique_ptr<MicrobatchGraphs> graphs)
    : plan_(plan),
      weights_(std::move(weights)),
      runner_(std::move(runner)),
      graphs_(std::move(graphs)),
      options_(std::move(options)),
      state_(stale_state(plan)),
      messages_(plan_, options_.pipeline),
      clock_(options_.device, options_.collectives) {
  for (const UnitPlan& unit : plan_.units) chain_.push_back(chain[unit.chain_index]);
  TITAN_CHECK(weights_.size() == plan_.groups.size(), weights_.size(), plan_.groups.size());
  // Where tensorwise float8 products need an amax, the kernel that writes the tensor computes it: no pass more.
  scales_.wanted =
      options_.kernels && plan_.request.float8 && recipe_of(*plan_.request.float8) == Float8Recipe::tensorwise;
  if (!plan_.request.offload_activations) return;
  TITAN_CHECK(options_.activation_offload && "offloaded activations need host memory");
  offload_ = std::make_unique<ActivationOffload>(options_.activation_offload);
}

const Program& Executor::program(ProgramKind kind) {
  for (const Program& program : programs_) {
    if (program.kind == kind && program.entry == state_) return program;
  }
  return programs_.emplace_back(expand(plan_, kind, state_));
}

at::Tensor Executor::run(const Program& program, std::span<const BatchContext> microbatches, StepWork& work,
                         const Observer& observer) {
  return run(program, Call{microbatches, work}, observer);
}

at::Tensor Executor::infer(const BatchContext& batch, UnitMode mode) {
  const at::NoGradGuard no_graph;
  StepWork nothing;
  at::Tensor result = run(program(ProgramKind::evaluation), Call{{&batch, 1}, nothing, mode}, {});
  return result.defined() || mode == UnitMode::logits ? result : at::zeros({}, loss_options(batch));
}

at::Tensor Executor::run(const Program& program, const Call& call, const Observer& observer) {
  TITAN_CHECK(program.entry == state_ && "the program was made for another weight state");
  for (const BatchContext& batch : call.microbatches) check_batch(batch);
  for (const Action& action : program.actions) {
    const bool is_timed = is_computation(action.kind);
    if (is_timed) clock_.begin();
    if (observer) observer(action);
    execute(action, call);
    if (is_timed) clock_.end();
  }
  TITAN_CHECK(messages_.empty() && "hidden states or gradients between units are left over");
  state_ = program.exit;
  return std::exchange(result_, at::Tensor());
}

void Executor::execute(const Action& action, const Call& call) {
  using enum ActionKind;
  if (action.unit >= 0 || action.group >= 0) position_ = action;
  std::optional<ProfileRange> range;
  if (const std::string_view name = range_name(action.kind); !name.empty()) {
    range.emplace(name, action.unit < 0 ? std::string_view() : plan_of(action).name);
  }
  auto microbatch = [&]() -> const BatchContext& { return call.microbatches[static_cast<size_t>(action.microbatch)]; };
  auto weights = [&]() -> WeightStore& { return *weights_[static_cast<size_t>(action.group)]; };
  switch (action.kind) {
    // clang-format off
    case forward: return run_forward(action, microbatch());
    case backward: return run_backward(action, microbatch());
    case weight_gradient: return run_weight_gradients(action);
    case graph: return run_graph(action, call);
    case evaluate: return run_evaluate(action, microbatch(), call.mode);
    case offload: state_of(action).offloaded = offload_->offload(tensors_of(state_of(action))); return;
    case fetch: return offload_->fetch(state_of(action).offloaded);
    case wait_fetch: return offload_->wait_fetch(state_of(action).offloaded, tensors_of(state_of(action)));

    case refresh: return weights().refresh();
    case unshard: return weights().unshard();
    case wait_unshard: return weights().wait_unshard();
    case reshard: return weights().reshard();
    case scale: return action.group < 0 ? WeightStore::scale_shards(trained_stores(-1)) : weights().scale();

    case open_gradient: return weights().open_gradient();
    case close_gradient: return weights().close_gradient();
    case reduce_scatter: return weights().reduce_scatter();
    case all_reduce: return weights().all_reduce();
    case wait_reduce: return weights().wait_reduce();
    case reduce_partial: return weights().reduce_partial();
    case add_tied: return weights().add_tied();
    case to_host: return weights().to_host();
    case wait_host: return wait_for_host(call.work);
    case zero_gradient: return drop_gradients(action.group);

    case send_forward: case receive_forward: case send_backward: case receive_backward:
    case batch: return messages_.transfer(action, call.microbatches[0]);
    case handoff_forward: case handoff_backward: return messages_.hand_off(action, call.microbatches[0]);
    case wait_forward: case wait_backward: return messages_.wait(key_of(action, action.kind == wait_backward));
    case wait_sends: return messages_.wait_sends();

    case loss_sum: return call.work.sum_loss(result_);
    case squares: return call.work.add_squares(action.group);
    case norm: return call.work.sum_norm(action.group);
    case control: return call.work.control(action.group);
    case before_change: return call.work.before_change();
    case collect: return call.work.collect(action.group);
    case transform: return call.work.transform(action.group);
    case wait_transform: return call.work.wait_transform(action.group);
    case step: {
      call.work.step(action.group);
      for (WeightStore* store : trained_stores(action.group)) store->weights_changed();
      return;
    }

    case input_gradient: case reduce_grad: case overlap: break;
      // clang-format on
  }
  throw InvariantError(
      fmt::format("internal error: {} is an action of schedule tables, which expand() replaces", word_of(action.kind)));
}

void Executor::run_forward(const Action& action, const BatchContext& batch) {
  const UnitPlan& unit = plan_of(action);
  if (unit.is_stages_first) {
    scales_.forget_gone();
    most_live_ = std::max(most_live_, ++live_);
  }
  HiddenStates input = unit.chain_index == 0 ? HiddenStates() : messages_.take(key_of(action, /*backward=*/false));
  UnitState& state = state_of(action);
  state.context = context_for(action, UnitMode::train);
  HiddenStates output =
      runner_->forward(*chain_[static_cast<size_t>(action.unit)], as_computed_in(unit, std::move(input)), batch, state);
  check_and_count(unit, batch, /*counted=*/true, output);
  TITAN_CHECK(!unit.is_models_last || is_number(output[0], at::kDouble), unit.name, summary_of(output[0]));
  if (inspector_) inspector_(action, output);
  if (!unit.is_models_last) return messages_.put(key_of(action, /*backward=*/false), std::move(output));
  result_ = result_.defined() ? result_ + output[0] : output[0];
}

void Executor::run_backward(const Action& action, const BatchContext& batch) {
  const UnitPlan& unit = plan_of(action);
  // The loss is fp64 whatever the unit's compute dtype, and so is its gradient, which is one.
  HiddenStates gradients = unit.is_models_last
                               ? HiddenStates{at::ones({}, loss_options(batch))}
                               : as_computed_in(unit, messages_.take(key_of(action, /*backward=*/true)));
  append_factors(unit, gradients, batch);
  gradients = runner_->backward(*chain_[static_cast<size_t>(action.unit)], gradients, batch, state_of(action));
  if (inspector_) inspector_(action, gradients);
  if (unit.is_stages_first && !plan_.request.splits_backward()) --live_;
  if (unit.chain_index > 0) messages_.put(key_of(action, /*backward=*/true), std::move(gradients));
}

void Executor::run_evaluate(const Action& action, const BatchContext& batch, UnitMode mode) {
  const UnitPlan& unit = plan_of(action);
  if (unit.is_stages_first) scales_.forget_gone();
  HiddenStates input = unit.chain_index == 0 ? HiddenStates() : messages_.take(key_of(action, /*backward=*/false));
  const std::unique_ptr<UnitContext> context = context_for(action, mode);
  HiddenStates output =
      chain_[static_cast<size_t>(action.unit)]->forward(as_computed_in(unit, std::move(input)), batch, *context);
  check_and_count(unit, batch, /*counted=*/false, output);
  const bool has_loss = unit.is_models_last && mode == UnitMode::evaluate;
  TITAN_CHECK(!has_loss || is_number(output[0], at::kDouble), unit.name, summary_of(output[0]));
  if (inspector_) inspector_(action, output);
  if (!unit.is_models_last) return messages_.put(key_of(action, /*backward=*/false), std::move(output));
  result_ = output[0];
}

void Executor::check_and_count(const UnitPlan& unit, const BatchContext& batch, bool counted, HiddenStates& output) {
  const std::vector<size_t>& statistics = unit.statistics;
  if (unit.is_models_last) {
    TITAN_CHECK(output.size() == 1 + statistics.size() && output[0].defined(), unit.name, output.size(),
                statistics.size());
  } else {
    check_hidden(output, unit.hands_on, rows_of(batch, plan_), statistics.size(), unit.name);
    for (size_t i = 0; i < unit.hands_on.size(); ++i) {
      TITAN_CHECK(output[i].defined() && output[i].scalar_type() == scalar_type(unit.compute), unit.name,
                  unit.hands_on[i].name, summary_of(output[i]), name(unit.compute));
    }
  }
  const size_t first = output.size() - statistics.size();
  for (size_t i = 0; i < statistics.size(); ++i) {
    const StatisticDescription& statistic = plan_.statistics[statistics[i]];
    const at::Tensor& values = output[first + i];
    TITAN_CHECK(values.defined() && values.scalar_type() == at::kDouble && values.dim() == 1 &&
                    values.numel() == statistic.numel,
                unit.name, statistic.name, summary_of(values), statistic.numel);
    if (!counted) continue;
    if (!statistics_.defined()) statistics_ = at::zeros({plan_.statistics_numel()}, loss_options(batch));
    statistics_.narrow(0, plan_.first_of_statistic(statistics[i]), statistic.numel).add_(values);
  }
  output.resize(first);
}

void Executor::append_factors(const UnitPlan& unit, HiddenStates& gradients, const BatchContext& batch) {
  for (const size_t index : unit.statistics) {
    const StatisticDescription& statistic = plan_.statistics[index];
    at::Tensor& factor = factors_[index];
    if (!factor.defined() && statistic.loss_factor != 0) {
      factor = at::full({statistic.numel}, statistic.loss_factor, loss_options(batch));
    }
    gradients.push_back(factor);
  }
}

void Executor::run_weight_gradients(const Action& action) {
  const auto found = deferred_products_.find({action.stage, action.microbatch});
  TITAN_CHECK(found != deferred_products_.end() && "a backward has deferred these weight gradients", action.stage,
              action.microbatch);
  found->second.run();
  deferred_products_.erase(found);
  --live_;
}

void Executor::run_graph(const Action& action, const Call& call) {
  TITAN_CHECK(graphs_);
  scales_.forget_gone();
  const at::Tensor before = take_statistics();
  const Inspector inspector = std::exchange(inspector_, {});  // it may wait for the device, which breaks a recording
  const std::vector<at::Tensor> computed = graphs_->run(call.microbatches[0], [&](const BatchContext& placed) {
    forget_microbatch();
    for (const Action& part : action.parts) execute(part, {{&placed, 1}, call.work, call.mode});
    std::vector<at::Tensor> sums{std::exchange(result_, at::Tensor())};
    if (statistics_.defined()) sums.push_back(take_statistics());
    return sums;
  });
  inspector_ = inspector;
  result_ = computed[0];
  if (computed.size() > 1) statistics_ = before.defined() ? before + computed[1] : computed[1].clone();
}

void Executor::forget_microbatch() {
  messages_.clear();
  states_.clear();
  live_ = 0;
  result_ = at::Tensor();
  statistics_ = at::Tensor();
}

UnitState& Executor::state_of(const Action& action) {
  const auto microbatch = static_cast<size_t>(action.microbatch);
  if (states_.size() <= microbatch) states_.resize(microbatch + 1);
  states_[microbatch].resize(chain_.size());
  return states_[microbatch][static_cast<size_t>(action.unit)];
}

std::unique_ptr<UnitContext> Executor::context_for(const Action& action, UnitMode mode) {
  const bool trains = mode == UnitMode::train;
  WeightGradientSink* sink = &immediate_;
  if (trains && plan_.request.splits_backward()) sink = &deferred_products_[{action.stage, action.microbatch}];
  auto context = std::make_unique<UnitContext>(mode, trains ? plan_of(action).policy : RecomputePolicy::none(), *sink);
  context->kernels = options_.kernels.get();
  context->loss_kernels = options_.loss_kernels.get();
  context->scales = scales_;
  if (!trains) return context;
  context->count_saved = options_.count_saved_bytes;
  context->recorder.set_hash_check(options_.check_kept_tensors);
  return context;
}

std::vector<WeightStore*> Executor::stores_of(int group) const {
  if (group >= 0) return {weights_[static_cast<size_t>(group)].get()};
  std::vector<WeightStore*> stores;
  for (const auto& store : weights_) stores.push_back(store.get());
  return stores;
}

std::vector<WeightStore*> Executor::trained_stores(int group) const {
  std::vector<WeightStore*> stores = stores_of(group);
  std::erase_if(stores, [](const WeightStore* store) { return !store->is_trained(); });
  return stores;
}

// Once per step, or once per group when stepping in backward.
void Executor::wait_for_host(StepWork& work) {
  const std::vector<at::Tensor*> scalars = work.applied_scalars();
  std::vector<at::Tensor> numbers;
  for (const at::Tensor* scalar : scalars) numbers.push_back(*scalar);
  const std::vector<at::Tensor> here = options_.weight_offload->wait_to_host(numbers);
  for (size_t i = 0; i < scalars.size(); ++i) *scalars[i] = here[i];
  for (auto& store : weights_) store->end_to_host();
}

void Executor::drop_gradients(int group) {
  for (WeightStore* store : stores_of(group)) store->zero_gradient();
  if (group >= 0) return;
  runner_->finish_step();
  if (graphs_) graphs_->finish_step();
}

void Executor::weights_changed() {
  for (const auto& store : weights_) store->weights_changed();
  std::vector<bool> open = std::move(state_.open);
  state_ = stale_state(plan_);
  state_.open = std::move(open);
}

std::vector<const Parameter*> Executor::changed_copies() const {
  std::vector<const Parameter*> changed;
  for (const auto& store : weights_) {
    const std::vector<const Parameter*> of_group = store->changed_copies();
    changed.insert(changed.end(), of_group.begin(), of_group.end());
  }
  return changed;
}

void Executor::zero_gradient() {
  drop_gradients(-1);
  state_.open.assign(plan_.groups.size(), false);
}

int64_t Executor::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& store : weights_) bytes += store->gradient_bytes();
  return bytes;
}

int64_t Executor::saved_bytes(size_t unit, int64_t microbatch) const {
  const UnitState& state = states_.at(static_cast<size_t>(microbatch)).at(unit);
  TITAN_CHECK(options_.count_saved_bytes && state.context, unit, microbatch);
  SavedLedger ledger = state.context->saved;
  for (const at::Tensor& leaf : state.leaves) {
    if (leaf.defined()) ledger.add(leaf);  // leaves on the host are undefined
  }
  for (const at::Tensor& kept : state.context->recorder.kept()) {
    if (kept.defined()) ledger.add(kept);
  }
  return ledger.bytes();
}

std::string Executor::position() const {
  if (!position_) return {};
  // To users, the evaluation of a unit is a forward.
  const std::string_view range = position_->kind == ActionKind::evaluate ? "forward" : range_name(position_->kind);
  return fmt::format(
      "{} of {}", range.empty() ? word_of(position_->kind) : range,
      position_->unit < 0 ? plan_.groups[static_cast<size_t>(position_->group)].name : plan_of(*position_).name);
}

}  // namespace titan
