#include "titan/parallel/unit_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

constexpr int64_t kEagerPasses = 2;        // libraries initialise in the first runs, which cannot be recorded
constexpr size_t kMostRecordedPasses = 4;  // first and later microbatches, for two shapes; each holds memory

/// Adds the tensor's shape and type to the key of a pass.
void append_shape(std::vector<int64_t>& key, const at::Tensor& tensor) {
  key.push_back(tensor.defined() ? tensor.dim() : -1);
  if (!tensor.defined()) return;
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
}

/// The addresses of the parameters, which must not change either. A graph either writes or adds to a gradient, so that
/// is part of the key.
std::vector<const void*> addresses_of(std::span<Parameter* const> parameters, bool with_gradients) {
  std::vector<const void*> result;
  for (Parameter* parameter : parameters) {
    result.push_back(parameter->weight().const_data_ptr());
    result.push_back(parameter->float8_scale.defined() ? parameter->float8_scale.value.const_data_ptr() : nullptr);
    if (!with_gradients || !parameter->trainable()) continue;
    result.push_back(parameter->gradient().const_data_ptr());
    result.push_back(parameter->gradient_written() ? parameter : nullptr);
  }
  return result;
}

/// Which gradients have been written: work that was not recorded to its end has marked some that were not.
class GradientMarks {
 public:
  explicit GradientMarks(std::span<Parameter* const> parameters) : parameters_(parameters) {
    for (const Parameter* parameter : parameters_) written_.push_back(parameter->gradient_written());
  }
  void restore() const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = *parameters_[i];
      // A gradient that is set counts as not written.
      if (parameter.gradient_written() && !written_[i]) parameter.set_gradient(parameter.gradient());
    }
  }

 private:
  std::span<Parameter* const> parameters_;
  std::vector<bool> written_;
};

std::vector<torch::autograd::Edge> edges_of(const HiddenStates& outputs) {
  std::vector<torch::autograd::Edge> edges;
  for (const at::Tensor& output : outputs) edges.push_back(torch::autograd::impl::gradient_edge(output));
  return edges;
}

void copy_to(const HiddenStates& place, const HiddenStates& given) {
  TITAN_CHECK(place.size() == given.size(), place.size(), given.size());
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i].const_data_ptr() != given[i].const_data_ptr()) place[i].copy_(given[i]);
  }
}

/// Appends the known amax of tensors to `hidden`; `which`: the indices of these tensors.
HiddenStates with_amax(HiddenStates hidden, const ScaleTable& scales, std::vector<size_t>& which) {
  which.clear();
  for (size_t i = 0, count = hidden.size(); i < count; ++i) {
    const at::Tensor largest = hidden[i].defined() ? scales.find(hidden[i]) : at::Tensor();
    if (!largest.defined()) continue;
    which.push_back(i);
    hidden.push_back(largest);
  }
  return hidden;
}

/// Appends the amax of the tensors `which`, computed if it is not known.
HiddenStates with_amax_of(const std::vector<size_t>& which, HiddenStates hidden, const ScaleTable& scales) {
  for (const size_t i : which) {
    const at::Tensor largest = scales.find(hidden[i]);
    hidden.push_back(largest.defined() ? largest : hidden[i].abs().amax().to(at::kFloat));
  }
  return hidden;
}

/// Removes the appended amax values and offers them to `scales`.
HiddenStates without_amax(HiddenStates all, ScaleTable& scales, const std::vector<size_t>& which) {
  const size_t count = all.size() - which.size();
  for (size_t i = 0; i < which.size(); ++i) scales.offer(all[which[i]], all[count + i]);
  all.resize(count);
  return all;
}

void copy_batch(BatchContext& place, const BatchContext& batch) {
  place.tokens.copy_(batch.tokens);
  place.labels.copy_(batch.labels);
  if (place.positions.defined()) place.positions.copy_(batch.positions);
  place.loss_scale_at.fill_(batch.loss_scale);
}

BatchContext place_for(const BatchContext& batch) {
  BatchContext place = batch;
  place.tokens = batch.tokens.clone();
  place.labels = batch.labels.clone();
  if (batch.positions.defined()) place.positions = batch.positions.clone();
  place.loss_scale_at = at::empty({}, batch.tokens.options().dtype(at::kDouble));
  place.loss_scale_at.fill_(batch.loss_scale);
  return place;
}

}  // namespace

HiddenStates EagerRunner::forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) {
  UnitContext& context = *state.context;
  state.leaves.clear();
  for (const at::Tensor& tensor : input) state.leaves.push_back(tensor.detach().set_requires_grad(true));
  HiddenStates output;
  if (context.recorder.checkpointed()) {
    at::NoGradGuard no_graph;
    context.recorder.start(Recorder::Phase::first_run);
    output = unit.forward(state.leaves, batch, context);
  } else {
    output = unit.forward(state.leaves, batch, context);
    state.edges = edges_of(output);
  }
  for (at::Tensor& tensor : output) tensor = tensor.detach();
  return output;
}

HiddenStates EagerRunner::backward(Unit& unit, const HiddenStates& output_gradients, const BatchContext& batch,
                                   UnitState& state) {
  if (state.context->recorder.checkpointed()) {
    state.context->recorder.start(Recorder::Phase::replay);
    state.edges = edges_of(unit.forward(state.leaves, batch, *state.context));
  }
  torch::autograd::edge_list inputs;
  for (const at::Tensor& leaf : state.leaves) inputs.push_back(torch::autograd::impl::gradient_edge(leaf));
  // What has no gradient is left out: statistics without a factor, and tensors that the next unit did not use.
  TITAN_CHECK(state.edges.size() == output_gradients.size(), state.edges.size(), output_gradients.size());
  torch::autograd::edge_list roots;
  HiddenStates root_gradients;
  for (size_t i = 0; i < output_gradients.size(); ++i) {
    if (!state.edges[i].is_valid() || !output_gradients[i].defined()) continue;
    roots.push_back(state.edges[i]);
    root_gradients.push_back(output_gradients[i]);
  }
  HiddenStates input_gradients = torch::autograd::Engine::get_default_engine().execute(
      roots, root_gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/inputs.empty(), inputs);
  // Deferred weight gradients hold the tensors that they need, so the context can be freed.
  state = UnitState();
  return input_gradients;
}

GraphRunner::GraphRunner(std::vector<const Unit*> units, std::unique_ptr<GraphCapture> recorder)
    : units_(std::move(units)), recorder_(std::move(recorder)), by_graph_(units_.size(), false) {
  TITAN_CHECK(!units_.empty() && recorder_ != nullptr, units_.size());
  for (const Unit* unit : units_) {
    indices_[unit] = parameters_.size();
    parameters_.push_back(unit->weights());
  }
}

size_t GraphRunner::index_of(const Unit& unit) const {
  const auto found = indices_.find(&unit);
  return found == indices_.end() ? units_.size() : found->second;
}

void GraphRunner::begin_pass(const HiddenStates& input, const BatchContext& batch) {
  const bool first = std::exchange(first_of_step_, false);
  mode_ = Mode::eager;
  chain_ = nullptr;
  last_.clear();
  if (given_up_) {
    chains_.clear();
    return;
  }
  if (!batch.bounds.document_starts.empty()) return;  // other documents need other kernel calls
  PassKey key{first};
  for (const at::Tensor& tensor : input) append_shape(key, tensor);
  append_shape(key, batch.tokens);
  append_shape(key, batch.positions);
  if (!chains_.contains(key) && chains_.size() == kMostRecordedPasses) return;
  Chain& chain = chains_[key];
  if (++chain.seen <= kEagerPasses) return;
  chain_ = &chain;
  if (!chain.entries.empty()) {
    mode_ = Mode::replay;
    if (chain.positions.defined()) chain.positions.copy_(batch.positions);
    return;
  }
  mode_ = Mode::record;
  recorder_->prepare();
  chain.entries.resize(units_.size());
  if (batch.positions.defined()) chain.positions = batch.positions.clone();
}

HiddenStates GraphRunner::place_for(const HiddenStates& given) {
  HiddenStates place;
  for (size_t i = 0; i < given.size(); ++i) {
    // The output of the graph before is read where it is: a replay copies nothing.
    const bool stays = i < last_.size() && last_[i].const_data_ptr() == given[i].const_data_ptr();
    place.push_back(stays ? recorder_->unowned(given[i]) : at::empty_like(given[i]));
  }
  return place;
}

HiddenStates GraphRunner::forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) {
  const size_t index = index_of(unit);
  if (index == 0) begin_pass(input, batch);
  if (index < units_.size()) {
    by_graph_[index] = false;
    if (mode_ == Mode::record) {
      try {
        return record_forward(index, unit, input, batch, *state.context);
      } catch (const GraphsDoNotFit& reason) {
        give_up(reason);
      }
    }
    if (mode_ == Mode::replay) {
      Entry& entry = chain_->entries[index];
      entry.usable =
          entry.usable && entry.forward_addresses == addresses_of(parameters_[index], /*with_gradients=*/false);
      if (entry.usable) {
        ScaleTable& scales = state.context->scales;
        copy_to(entry.input, with_amax_of(entry.input_amaxes, input, scales));
        by_graph_[index] = true;
        ++counts_.replayed;
        last_ = entry.forward->run();
        return without_amax(last_, scales, entry.output_amaxes);
      }
    }
  }
  ++counts_.eager;
  return eager_.forward(unit, input, batch, state);
}

HiddenStates GraphRunner::record_forward(size_t index, Unit& unit, const HiddenStates& input, const BatchContext& batch,
                                         UnitContext& context) {
  Entry& entry = chain_->entries[index];
  entry.forward_addresses = addresses_of(parameters_[index], /*with_gradients=*/false);
  entry.batch = batch;
  if (chain_->positions.defined()) entry.batch.positions = chain_->positions;
  entry.held_input = with_amax(input, context.scales, entry.input_amaxes);
  entry.input = place_for(entry.held_input);
  const HiddenStates read = without_amax(entry.input, context.scales, entry.input_amaxes);
  entry.forward = recorder_->record([this, &unit, &entry, read, fresh = UnitContext(context)] {
    entry.state.context = std::make_unique<UnitContext>(fresh);
    HiddenStates output = eager_.forward(unit, read, entry.batch, entry.state);
    return with_amax(std::move(output), fresh.scales, entry.output_amaxes);
  });
  copy_to(entry.input, entry.held_input);
  by_graph_[index] = true;
  ++counts_.recorded;
  last_ = entry.forward->run();
  return without_amax(last_, context.scales, entry.output_amaxes);
}

HiddenStates GraphRunner::backward(Unit& unit, const HiddenStates& output_gradients, const BatchContext& batch,
                                   UnitState& state) {
  const size_t index = index_of(unit);
  if (index >= units_.size() || !by_graph_[index]) {
    ++counts_.eager;
    return eager_.backward(unit, output_gradients, batch, state);
  }
  const std::unique_ptr<UnitContext> context = std::move(state.context);
  state = UnitState();
  Entry& entry = chain_->entries[index];
  ScaleTable& scales = context->scales;
  if (mode_ == Mode::record) {
    const GradientMarks marks(parameters_[index]);
    try {
      return record_backward(index, unit, output_gradients, scales);
    } catch (const GraphsDoNotFit& reason) {
      marks.restore();
      give_up(reason);
    }
  }
  if (given_up_ || entry.backward_addresses != addresses_of(parameters_[index], /*with_gradients=*/true)) {
    return backward_after_all(index, unit, output_gradients, batch, *context);
  }
  copy_to(entry.gradient, with_amax_of(entry.gradient_amaxes, output_gradients, scales));
  ++counts_.replayed;
  last_ = entry.backward->run();
  for (Parameter* parameter : entry.written) parameter->mark_gradient_written();
  return without_amax(last_, scales, entry.result_amaxes);
}

HiddenStates GraphRunner::record_backward(size_t index, Unit& unit, const HiddenStates& output_gradients,
                                          ScaleTable& scales) {
  Entry& entry = chain_->entries[index];
  entry.backward_addresses = addresses_of(parameters_[index], /*with_gradients=*/true);
  entry.held_gradient = with_amax(output_gradients, scales, entry.gradient_amaxes);
  entry.gradient = place_for(entry.held_gradient);
  const HiddenStates read = without_amax(entry.gradient, scales, entry.gradient_amaxes);
  entry.backward = recorder_->record([this, &unit, &entry, read, scales] {
    return with_amax(eager_.backward(unit, read, entry.batch, entry.state), scales, entry.result_amaxes);
  });
  copy_to(entry.gradient, entry.held_gradient);
  ++counts_.recorded;
  last_ = entry.backward->run();
  for (Parameter* parameter : parameters_[index]) {
    if (parameter->gradient_written()) entry.written.push_back(parameter);
  }
  entry.held_input.clear();
  entry.held_gradient.clear();
  return without_amax(last_, scales, entry.result_amaxes);
}

void GraphRunner::give_up(const GraphsDoNotFit& reason) {
  mode_ = Mode::eager;
  if (std::exchange(given_up_, true)) return;
  last_.clear();
  for (auto& [key, chain] : chains_) {
    for (Entry& entry : chain.entries) {
      entry.state = UnitState();
      entry.forward.reset();
      entry.backward.reset();
    }
  }
  recorder_->given_up(reason.what());
}

// The forward was a graph, but its backward cannot be one: the weights have moved since, or graphs do not fit. Both run
// again, eagerly. The input is still in the memory that the graph read.
HiddenStates GraphRunner::backward_after_all(size_t index, Unit& unit, const HiddenStates& output_gradients,
                                             const BatchContext& batch, const UnitContext& context) {
  Entry& entry = chain_->entries[index];
  entry.usable = false;
  UnitState state;
  state.context = std::make_unique<UnitContext>(context);
  const auto behind = entry.input.end() - static_cast<std::ptrdiff_t>(entry.input_amaxes.size());
  eager_.forward(unit, HiddenStates(entry.input.begin(), behind), batch, state);
  counts_.eager += 2;
  return eager_.backward(unit, output_gradients, batch, state);
}

MicrobatchGraphs::MicrobatchGraphs(std::vector<Parameter*> parameters, std::unique_ptr<GraphCapture> recorder)
    : parameters_(std::move(parameters)), recorder_(std::move(recorder)) {
  TITAN_CHECK(recorder_ != nullptr, parameters_.size());
}

MicrobatchGraphs::Entry* MicrobatchGraphs::entry_for(const BatchContext& batch) {
  const bool first = std::exchange(first_of_step_, false);
  if (!recorder_) return nullptr;
  if (!batch.bounds.document_starts.empty()) return nullptr;  // other documents need other kernel calls
  std::vector<int64_t> key{first};
  for (const at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.positions}) append_shape(key, *tensor);
  if (!entries_.contains(key) && entries_.size() == kMostRecordedPasses) return nullptr;
  Entry& entry = entries_[key];
  return ++entry.seen <= kEagerPasses ? nullptr : &entry;
}

std::vector<at::Tensor> MicrobatchGraphs::run(const BatchContext& batch, const Compute& compute) {
  Entry* entry = entry_for(batch);
  if (entry && !entry->graph) return record_or_compute(*entry, batch, compute);
  if (entry) entry->usable = entry->usable && entry->addresses == addresses_of(parameters_, /*with_gradients=*/true);
  if (!entry || !entry->usable) return compute(batch);
  copy_batch(entry->batch, batch);
  std::vector<at::Tensor> sums = entry->graph->run();
  for (Parameter* parameter : entry->written) parameter->mark_gradient_written();
  return sums;
}

std::vector<at::Tensor> MicrobatchGraphs::record_or_compute(Entry& entry, const BatchContext& batch,
                                                            const Compute& compute) {
  const GradientMarks marks(parameters_);
  try {
    return record(entry, batch, compute);
  } catch (const GraphsDoNotFit& reason) {
    marks.restore();
    recorder_->given_up(reason.what());
  }
  entries_.clear();  // frees the memory of all graphs; `entry` is one of them
  recorder_.reset();
  return compute(batch);
}

std::vector<at::Tensor> MicrobatchGraphs::record(Entry& entry, const BatchContext& batch, const Compute& compute) {
  recorder_->prepare();
  entry.addresses = addresses_of(parameters_, /*with_gradients=*/true);
  entry.batch = place_for(batch);
  entry.graph = recorder_->record([&entry, compute] { return compute(entry.batch); });
  std::vector<at::Tensor> sums = entry.graph->run();
  for (Parameter* parameter : parameters_) {
    if (parameter->trainable() && parameter->gradient_written()) entry.written.push_back(parameter);
  }
  return sums;
}

}  // namespace titan
