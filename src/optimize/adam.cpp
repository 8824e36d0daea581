#include "titan/optimize/adam.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "cpu_kernels.h"
#include "titan/base/error.h"
#include "titan/gpu/cuda.h"
#include "titan/kernels/kernels.h"
#include "titan/ops/tensor_checks.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/optimize/neighbours.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

/// Once for each parameter and step: the loops below read gradient, master and moments by address, with one count.
void check_gradient(const Parameter& parameter) {
  const at::Tensor &gradient = parameter.gradient_shard, &master = parameter.master;
  TITAN_CHECK(gradient.defined() && (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == at::kBFloat16) &&
                  gradient.sizes() == master.sizes() && gradient.device() == master.device(),
              parameter.name(), summary_of(gradient), summary_of(master));
}

/// The CPU reads clip factor and skip flag with look_at, in either width; the GPU's kernel reads fp32 by address.
void check_control(const StepControl& control, const at::Device& device) {
  const bool clips = is_number(control.clip, at::kFloat) || (device.is_cpu() && is_number(control.clip, at::kDouble));
  TITAN_CHECK(clips && is_number(control.skip, at::kFloat) && control.clip.device() == device &&
                  control.skip.device() == device,
              summary_of(control.clip), summary_of(control.skip), device.str());
}

}  // namespace

bool AdamOptimizer::writes_copy(const Parameter& parameter) {
  const at::Tensor& copy = parameter.compute_copy;
  return parameter.master.scalar_type() == at::kFloat && copy.defined() && copy.scalar_type() == at::kBFloat16 &&
         copy.is_contiguous() && copy.device() == parameter.master.device();
}

AdamOptimizer::AdamOptimizer(std::vector<Parameter*> parameters, const std::vector<ParameterGroup>& groups,
                             const OptimizerSection& options, uint64_t rounding_seed,
                             std::shared_ptr<HostOffload> offload)
    : options_(options),
      decoupled_decay_(options.name == OptimizerKind::adamw),
      state_type_(scalar_type(options.state_dtype)),
      rounding_seed_(rounding_seed),
      offload_(std::move(offload)),
      states_(parameters.size()) {
  TITAN_CHECK(options.name != OptimizerKind::muon);
  for (const ParameterGroup& group : groups) {
    for (size_t index : group.members) {
      states_[index].lr_multiplier = group.lr_multiplier;
      states_[index].weight_decay = options.weight_decay * group.weight_decay_multiplier;
    }
  }
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters[0]->master.device();
  counts_ = at::zeros({std::ssize(parameters)}, at::kFloat).to(device);
  if (device.is_cuda()) corrections_ = at::ones({std::ssize(parameters), 2}, at::kFloat).to(device);
  for (size_t i = 0; i < parameters.size(); ++i) {
    states_[i].parameter = parameters[i];
    states_[i].applied = counts_[static_cast<int64_t>(i)];
    if (device.is_cuda()) states_[i].corrections = corrections_[static_cast<int64_t>(i)];
  }
  // Moments are in memory in the order of the masters, so that a range of masters is a range of moments.
  std::vector<State*> by_address;
  for (State& state : states_) {
    if (state.parameter->trainable()) by_address.push_back(&state);
  }
  std::sort(by_address.begin(), by_address.end(), [](const State* a, const State* b) {
    return a->parameter->master.const_data_ptr() < b->parameter->master.const_data_ptr();
  });
  int64_t total = 0;
  for (State* state : by_address) total += state->parameter->master.numel();
  if (by_address.empty()) return;
  const at::TensorOptions layout = by_address[0]->parameter->master.options().dtype(state_type_);
  const auto zeros = [&] {
    return offload_ ? offload_->host().allocate(total, state_type_, offload_->pins()).zero_()
                    : at::zeros({total}, layout);
  };
  at::Tensor first = zeros();
  at::Tensor second = zeros();
  int64_t offset = 0;
  for (State* state : by_address) {
    const at::Tensor& master = state->parameter->master;
    state->first = first.narrow(0, offset, master.numel()).view(master.sizes());
    state->second = second.narrow(0, offset, master.numel()).view(master.sizes());
    offset += master.numel();
  }
}

const at::Tensor& AdamOptimizer::first_moment(size_t index) const {
  for (AsyncCopy& copy : returns_) copy.synchronize();
  return states_[index].first;
}

const at::Tensor& AdamOptimizer::second_moment(size_t index) const {
  for (AsyncCopy& copy : returns_) copy.synchronize();
  return states_[index].second;
}

int64_t AdamOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const State& state : states_) {
    if (state.first.defined()) bytes += static_cast<int64_t>(state.first.nbytes() + state.second.nbytes());
  }
  return bytes;
}

void AdamOptimizer::step(int64_t step, double lr, const StepControl& control) {
  std::vector<const State*> ready;
  for (const State& state : states_) {
    Parameter& parameter = *state.parameter;
    if (!parameter.trainable()) {
      keep_frozen(parameter);
    } else if (parameter.gradient_shard.defined()) {
      ready.push_back(&state);
    }
  }
  apply(ready, step, lr, control);
}

void AdamOptimizer::step_some(std::span<Parameter* const> parameters, int64_t step, double lr,
                              const StepControl& control) {
  std::vector<const State*> ready;
  for (const State& state : states_) {
    if (std::find(parameters.begin(), parameters.end(), state.parameter) == parameters.end()) continue;
    if (state.parameter->trainable()) {
      ready.push_back(&state);
    } else {
      keep_frozen(*state.parameter);
    }
  }
  apply(ready, step, lr, control);
}

/// Copy and amax of a weight that no step changes stay valid.
void AdamOptimizer::keep_frozen(Parameter& parameter) {
  parameter.compute_copy_written = writes_copy(parameter);
  parameter.amax_written = parameter.amax.defined();
}

void AdamOptimizer::apply(const std::vector<const State*>& states, int64_t step, double lr,
                          const StepControl& control) {
  if (states.empty()) return;
  check_control(control, counts_.device());
  for (const State* state : states) check_gradient(*state->parameter);
  if (!count(states, control)) return;
  begin_amaxes(states, control);
  offload_ ? step_offloaded(states, step, lr, control) : step_states(states, step, lr, control);
}

bool AdamOptimizer::count(const std::vector<const State*>& states, const StepControl& control) {
  if (!counts_.is_cpu()) return count_on_device(states, control), true;
  if (look_at(control.skip) != 0) return false;
  for (const State* state : states) *state->applied.mutable_data_ptr<float>() += 1;
  return true;
}

// The host learns of a skipped step one step late, so the count and what follows from it stay on the device.
void AdamOptimizer::count_on_device(const std::vector<const State*>& states, const StepControl& control) {
  if (!std::exchange(counts_are_known_, true)) {
    const at::Tensor begun = counts_.cpu();
    for (size_t i = 0; i < states_.size(); ++i) states_[i].begun = begun.const_data_ptr<float>()[i];
  }
  at::Tensor& rows = rows_[states[0]];
  if (!rows.defined()) {
    std::vector<int64_t> numbers;
    for (const State* state : states) numbers.push_back(state->applied.storage_offset());
    rows = at::tensor(numbers, at::kLong).to(counts_.device());
  }
  counts_.index_add_(0, rows, (1 - control.skip).expand(rows.sizes()));
  const at::Tensor steps = counts_.to(at::kDouble);
  corrections_.select(1, 0).copy_((1 - at::pow(options_.beta1, steps)).reciprocal_());
  corrections_.select(1, 1).copy_((1 - at::pow(options_.beta2, steps)).rsqrt_());
}

// While one parameter is stepped, the next one's moments are copied to the device and the previous one's to the host.
void AdamOptimizer::step_offloaded(const std::vector<const State*>& states, int64_t step, double lr,
                                   const StepControl& control) {
  struct Visit {
    State state;
    AsyncCopy first, second;
  };
  const auto fetch = [&](const State& state) {
    const auto to_device = [&](const at::Tensor& host, at::Tensor& here) {
      here = offload_->device().allocate(host.numel(), host.scalar_type()).view(host.sizes());
      return offload_->to_device(here, host);
    };
    Visit visit{state, {}, {}};
    visit.first = to_device(state.first, visit.state.first);
    visit.second = to_device(state.second, visit.state.second);
    return visit;
  };
  std::optional<Visit> next;
  for (size_t i = 0; i < states.size(); ++i) {
    Visit visit = next ? *std::exchange(next, std::nullopt) : fetch(*states[i]);
    if (i + 1 < states.size()) next = fetch(*states[i + 1]);
    for (AsyncCopy& copy : returns_) copy.block_stream();
    returns_.clear();
    visit.first.block_stream();
    visit.second.block_stream();
    step_states({&visit.state}, step, lr, control);
    returns_.push_back(offload_->to_host(states[i]->first, visit.state.first));
    returns_.push_back(offload_->to_host(states[i]->second, visit.state.second));
  }
  for (AsyncCopy& copy : returns_) copy.block_stream();
}

void AdamOptimizer::step_states(const std::vector<const State*>& states, int64_t step, double lr,
                                const StepControl& control) {
  const at::Tensor& master = states[0]->parameter->master;
  const bool bf16_states = master.scalar_type() != at::kFloat || state_type_ != at::kFloat;
  if (options_.implementation == OptimizerImplementation::fused && bf16_states) {
    for (const State* state : states) step_bf16(*state, step, lr, control);
  } else if (options_.implementation == OptimizerImplementation::fused) {
    for (const Stretch& stretch : stretches(states)) {
      master.is_cuda() ? step_fused_cuda(stretch, lr, control) : step_fused_cpu(stretch, lr, control);
    }
  } else if (options_.implementation == OptimizerImplementation::for_loop) {
    for (const State* state : states) step_one(*state, step, lr, control);
  } else {
    step_foreach(states, step, lr, control);
  }
}

uint32_t* AdamOptimizer::amax_slot(const Parameter& parameter) {
  if (!parameter.amax.defined() || !parameter.master.is_cuda()) return nullptr;
  const bool writes = writes_copy(parameter) || parameter.compute_copy.is_same(parameter.master);
  return writes ? reinterpret_cast<uint32_t*>(parameter.amax.mutable_data_ptr<float>()) : nullptr;
}

void AdamOptimizer::begin_amaxes(const std::vector<const State*>& states, const StepControl& control) const {
  if (options_.implementation != OptimizerImplementation::fused) return;
  std::vector<at::Tensor> slots;
  for (const State* state : states) {
    if (amax_slot(*state->parameter)) slots.push_back(state->parameter->amax);
  }
  zero_unless_skipped(std::move(slots), control.skip);
}

bool AdamOptimizer::copies_join(const Parameter& before, const Parameter& after) {
  return writes_copy(before) == writes_copy(after) &&
         (!writes_copy(after) || adjacent(before.compute_copy, after.compute_copy));
}

bool AdamOptimizer::joins(const State& before, const State& after) {
  const auto count = [](const State& state) {
    return state.applied.is_cpu() ? *state.applied.const_data_ptr<float>() : state.begun;
  };
  return before.lr_multiplier == after.lr_multiplier && before.weight_decay == after.weight_decay &&
         count(before) == count(after) && adjacent(before.parameter->master, after.parameter->master) &&
         adjacent(before.parameter->gradient_shard, after.parameter->gradient_shard) &&
         adjacent(before.first, after.first) && copies_join(*before.parameter, *after.parameter) &&
         !amax_slot(*before.parameter) && !amax_slot(*after.parameter);  // a kernel raises one slot
}

std::vector<AdamOptimizer::Stretch> AdamOptimizer::stretches(const std::vector<const State*>& states) const {
  std::vector<const State*> ordered = states;
  std::sort(ordered.begin(), ordered.end(), [](const State* a, const State* b) {
    return a->parameter->master.const_data_ptr() < b->parameter->master.const_data_ptr();
  });
  std::vector<Stretch> result;
  for (const State* state : ordered) {
    const State* last = result.empty() ? nullptr : result.back().states.back();
    if (!last || !joins(*last, *state)) result.push_back({});
    result.back().states.push_back(state);
  }
  for (Stretch& stretch : result) {
    int64_t numel = 0;
    for (const State* state : stretch.states) numel += state->first.numel();
    const State& head = *stretch.states.front();
    TITAN_CHECK(head.parameter->gradient_shard.is_contiguous(), head.parameter->name());
    stretch.weight = merged(head.parameter->master, numel);
    stretch.gradient = merged(head.parameter->gradient_shard, numel);
    stretch.first = merged(head.first, numel);
    stretch.second = merged(head.second, numel);
    if (writes_copy(*head.parameter)) stretch.copy = merged(head.parameter->compute_copy, numel);
  }
  return result;
}

at::Tensor AdamOptimizer::bias_correction(const State& state, double beta) {
  if (!state.applied.is_cpu()) return 1 - at::pow(beta, state.applied.to(at::kDouble));
  return at::scalar_tensor(1 - std::pow(beta, look_at(state.applied)), at::kDouble);
}

AdamConstants AdamOptimizer::constants_of(const State& state, double lr) const {
  const double rate = lr * state.lr_multiplier;
  const bool decoupled = decoupled_decay_;
  AdamConstants constants{};
  constants.beta1 = static_cast<float>(options_.beta1);
  constants.beta2 = static_cast<float>(options_.beta2);
  constants.epsilon = static_cast<float>(options_.eps);
  // On a GPU the host does not know the count: kernels read the corrections from `corrections`.
  const bool on_host = state.applied.is_cpu();
  const double correction1 = on_host ? 1 - std::pow(options_.beta1, look_at(state.applied)) : 1;
  const double correction2 = on_host ? 1 - std::pow(options_.beta2, look_at(state.applied)) : 1;
  constants.step_size = static_cast<float>(rate / correction1);
  constants.root_scale = static_cast<float>(1 / std::sqrt(correction2));
  constants.decay = decoupled ? static_cast<float>(1 - rate * state.weight_decay) : 1.0f;
  constants.coupled = decoupled ? 0.0f : static_cast<float>(state.weight_decay);
  return constants;
}

void AdamOptimizer::step_fused_cpu(const Stretch& stretch, double lr, const StepControl& control) const {
  const AdamConstants constants = constants_of(*stretch.states.front(), lr);
  const double clip = look_at(control.clip);
  const AdamMemory memory{
      stretch.weight.mutable_data_ptr<float>(),
      stretch.gradient.const_data_ptr(),
      stretch.first.mutable_data_ptr<float>(),
      stretch.second.mutable_data_ptr<float>(),
      stretch.copy.defined() ? static_cast<BFloat16Bits*>(stretch.copy.mutable_data_ptr()) : nullptr,
      stretch.gradient.scalar_type() == at::kBFloat16};
  // Elements, 16 bytes each: with fewer, starting a thread takes longer than to step them.
  at::parallel_for(0, stretch.weight.numel(), 1 << 15,
                   [&](int64_t begin, int64_t end) { cpu_adam(memory, begin, end - begin, constants, clip); });
  for (const State* state : stretch.states) state->parameter->compute_copy_written = stretch.copy.defined();
}

void AdamOptimizer::step_one(const State& state, int64_t step, double lr, const StepControl& control) const {
  at::Tensor& master = state.parameter->master;
  const double rate = lr * state.lr_multiplier;
  const at::Tensor correction1 = bias_correction(state, options_.beta1);
  const at::Tensor correction2 = bias_correction(state, options_.beta2);
  at::Tensor g = state.parameter->gradient_shard.to(at::kFloat) * control.clip;
  at::Tensor p = master.to(at::kFloat);
  if (!decoupled_decay_) g = g + p * state.weight_decay;
  at::Tensor m = state.first.to(at::kFloat) * options_.beta1 + g * (1 - options_.beta1);
  at::Tensor v = state.second.to(at::kFloat) * options_.beta2 + g * g * (1 - options_.beta2);
  if (decoupled_decay_) p = p * (1 - rate * state.weight_decay);
  p = p - rate * (m / correction1) / (v.sqrt() / correction2.sqrt() + options_.eps);
  store(state, step, KeptNumber::first_moment, m, state.first, control);
  store(state, step, KeptNumber::second_moment, v, state.second, control);
  store(state, step, KeptNumber::weight, p, master, control);
}

void AdamOptimizer::step_foreach(const std::vector<const State*>& states, int64_t step, double lr,
                                 const StepControl& control) const {
  std::vector<at::Tensor> weights, g, first, second, corrections, roots;
  std::vector<at::Scalar> decays, couplings, rates;
  for (const State* state : states) {
    weights.push_back(state->parameter->master.to(at::kFloat));
    g.push_back(state->parameter->gradient_shard.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    first.push_back(state->first.to(at::kFloat));
    second.push_back(state->second.to(at::kFloat));
    const double rate = lr * state->lr_multiplier;
    decays.emplace_back(decoupled_decay_ ? 1 - rate * state->weight_decay : 1.0);
    couplings.emplace_back(decoupled_decay_ ? 0.0 : state->weight_decay);
    rates.emplace_back(-rate);
    corrections.push_back(bias_correction(*state, options_.beta1));
    roots.push_back(bias_correction(*state, options_.beta2).sqrt_());
  }
  // A skipped step is computed too, and `store` discards it: to look at the flag, the host would wait for the device.
  at::_foreach_mul_(g, control.clip);
  if (!decoupled_decay_) at::_foreach_add_(g, at::_foreach_mul(weights, couplings));
  std::vector<at::Tensor> m = at::_foreach_mul(first, options_.beta1);
  at::_foreach_add_(m, g, 1 - options_.beta1);
  std::vector<at::Tensor> v = at::_foreach_mul(second, options_.beta2);
  at::_foreach_addcmul_(v, g, g, 1 - options_.beta2);
  std::vector<at::Tensor> denominators = at::_foreach_sqrt(v);
  at::_foreach_div_(denominators, roots);
  at::_foreach_add_(denominators, options_.eps);
  std::vector<at::Tensor> fresh = at::_foreach_mul(weights, decays);
  at::_foreach_addcdiv_(fresh, at::_foreach_div(m, corrections), denominators, rates);
  for (size_t i = 0; i < states.size(); ++i) {
    store(*states[i], step, KeptNumber::first_moment, m[i], states[i]->first, control);
    store(*states[i], step, KeptNumber::second_moment, v[i], states[i]->second, control);
    store(*states[i], step, KeptNumber::weight, fresh[i], states[i]->parameter->master, control);
  }
}

void AdamOptimizer::step_fused_cuda(const Stretch& stretch, double lr, const StepControl& control) const {
  const AdamConstants constants = constants_of(*stretch.states.front(), lr);
  uint32_t* const amax = amax_slot(*stretch.states.front()->parameter);  // if it has one, it is stepped alone
  cuda().kernels().adam(
      {stretch.weight.mutable_data_ptr<float>(), stretch.gradient.const_data_ptr(),
       stretch.first.mutable_data_ptr<float>(), stretch.second.mutable_data_ptr<float>(), stretch.weight.numel(),
       constants, control.clip.const_data_ptr<float>(), control.skip.const_data_ptr<float>(),
       stretch.copy.defined() ? stretch.copy.mutable_data_ptr() : nullptr,
       stretch.states.front()->corrections.const_data_ptr<float>(),
       stretch.gradient.scalar_type() == at::kBFloat16 ? KernelType::bf16 : KernelType::fp32, amax},
      cuda().current_stream(stretch.weight.get_device()));
  // A skipped step writes neither weights nor copies nor amaxes, so all stay consistent.
  for (const State* state : stretch.states) {
    state->parameter->compute_copy_written = stretch.copy.defined();
    state->parameter->amax_written = amax != nullptr;
  }
}

void zero_unless_skipped(std::vector<at::Tensor> slots, const at::Tensor& skip) {
  if (slots.empty()) return;
  TITAN_CHECK(is_number(skip, at::kFloat), summary_of(skip));
  for (const at::Tensor& slot : slots) TITAN_CHECK(same_kind(slot, skip), summary_of(slot), summary_of(skip));
  std::vector<at::Tensor> bits;
  for (const at::Tensor& run : joined(std::move(slots))) bits.push_back(run.view(at::kInt));
  at::_foreach_mul_(bits, skip.to(at::kInt));  // as whole numbers: NaN · 0 is NaN
}

}  // namespace titan
