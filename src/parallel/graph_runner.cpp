#include "titan/parallel/graph_runner.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/parallel/recorded_passes.h"

namespace titan {
namespace {

void copy_to(const Stream& place, const Stream& given) {
  TITAN_CHECK(place.size() == given.size(), place.size(), given.size());
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i].const_data_ptr() != given[i].const_data_ptr()) place[i].copy_(given[i]);
  }
}

/// `stream`, and behind it the magnitudes that are known of its tensors: of `which`, in order.
Stream with_magnitudes(Stream stream, const ScaleTable& scales, std::vector<size_t>& which) {
  which.clear();
  for (size_t i = 0, count = stream.size(); i < count; ++i) {
    const at::Tensor largest = stream[i].defined() ? scales.find(stream[i]) : at::Tensor();
    if (!largest.defined()) continue;
    which.push_back(i);
    stream.push_back(largest);
  }
  return stream;
}

/// The same for a graph that reads those of `which`: found by looking where they are not known this time.
Stream with_magnitudes_of(const std::vector<size_t>& which, Stream stream, const ScaleTable& scales) {
  for (const size_t i : which) {
    const at::Tensor largest = scales.find(stream[i]);
    stream.push_back(largest.defined() ? largest : stream[i].abs().amax().to(at::kFloat));
  }
  return stream;
}

/// The tensors themselves, of which the magnitudes behind them are made known.
Stream without_magnitudes(Stream all, ScaleTable& scales, const std::vector<size_t>& which) {
  const size_t count = all.size() - which.size();
  for (size_t i = 0; i < which.size(); ++i) scales.offer(all[which[i]], all[count + i]);
  all.resize(count);
  return all;
}

}  // namespace

GraphRunner::GraphRunner(std::vector<const Unit*> units, std::unique_ptr<WorkRecorder> recorder)
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

void GraphRunner::begin_pass(const Stream& input, const BatchContext& batch) {
  const bool first = std::exchange(first_of_step_, false);
  mode_ = Mode::eager;
  chain_ = nullptr;
  last_.clear();
  if (!batch.bounds.document_starts.empty()) return;  // other documents, other kernel calls
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

Stream GraphRunner::place_for(const Stream& given) {
  Stream place;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool stays = i < last_.size() && last_[i].const_data_ptr() == given[i].const_data_ptr();
    place.push_back(stays ? recorder_->unowned(given[i]) : at::empty_like(given[i]));
  }
  return place;
}

Stream GraphRunner::forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) {
  const size_t index = index_of(unit);
  if (index == 0) begin_pass(input, batch);
  if (index < units_.size()) {
    by_graph_[index] = false;
    if (mode_ == Mode::record) return record_forward(index, unit, input, batch, *state.context);
    if (mode_ == Mode::replay) {
      Entry& entry = chain_->entries[index];
      entry.usable =
          entry.usable && entry.forward_addresses == addresses_of(parameters_[index], /*with_gradients=*/false);
      if (entry.usable) {
        ScaleTable& scales = state.context->scales;
        copy_to(entry.input, with_magnitudes_of(entry.input_magnitudes, input, scales));
        by_graph_[index] = true;
        ++counts_.replayed;
        last_ = entry.forward->run();
        return without_magnitudes(last_, scales, entry.output_magnitudes);
      }
    }
  }
  ++counts_.eager;
  return eager_.forward(unit, input, batch, state);
}

Stream GraphRunner::record_forward(size_t index, Unit& unit, const Stream& input, const BatchContext& batch,
                                   UnitContext& context) {
  Entry& entry = chain_->entries[index];
  entry.forward_addresses = addresses_of(parameters_[index], /*with_gradients=*/false);
  entry.batch = batch;
  if (chain_->positions.defined()) entry.batch.positions = chain_->positions;
  entry.held_input = with_magnitudes(input, context.scales, entry.input_magnitudes);
  entry.input = place_for(entry.held_input);
  const Stream read = without_magnitudes(entry.input, context.scales, entry.input_magnitudes);
  entry.forward = recorder_->record([this, &unit, &entry, read, fresh = UnitContext(context)] {
    entry.state.context = std::make_unique<UnitContext>(fresh);
    Stream output = eager_.forward(unit, read, entry.batch, entry.state);
    return with_magnitudes(std::move(output), fresh.scales, entry.output_magnitudes);
  });
  copy_to(entry.input, entry.held_input);
  by_graph_[index] = true;
  ++counts_.recorded;
  last_ = entry.forward->run();
  return without_magnitudes(last_, context.scales, entry.output_magnitudes);
}

Stream GraphRunner::backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) {
  const size_t index = index_of(unit);
  if (index >= units_.size() || !by_graph_[index]) {
    ++counts_.eager;
    return eager_.backward(unit, output_gradients, batch, state);
  }
  const std::unique_ptr<UnitContext> context = std::move(state.context);
  state = UnitState();
  Entry& entry = chain_->entries[index];
  ScaleTable& scales = context->scales;
  if (mode_ == Mode::record) return record_backward(index, unit, output_gradients, scales);
  if (entry.backward_addresses != addresses_of(parameters_[index], /*with_gradients=*/true)) {
    return backward_after_all(index, unit, output_gradients, batch, *context);
  }
  copy_to(entry.gradient, with_magnitudes_of(entry.gradient_magnitudes, output_gradients, scales));
  ++counts_.replayed;
  last_ = entry.backward->run();
  for (Parameter* parameter : entry.written) parameter->mark_gradient_written();
  return without_magnitudes(last_, scales, entry.result_magnitudes);
}

Stream GraphRunner::record_backward(size_t index, Unit& unit, const Stream& output_gradients, ScaleTable& scales) {
  Entry& entry = chain_->entries[index];
  entry.backward_addresses = addresses_of(parameters_[index], /*with_gradients=*/true);
  entry.held_gradient = with_magnitudes(output_gradients, scales, entry.gradient_magnitudes);
  entry.gradient = place_for(entry.held_gradient);
  const Stream read = without_magnitudes(entry.gradient, scales, entry.gradient_magnitudes);
  entry.backward = recorder_->record([this, &unit, &entry, read, scales] {
    return with_magnitudes(eager_.backward(unit, read, entry.batch, entry.state), scales, entry.result_magnitudes);
  });
  copy_to(entry.gradient, entry.held_gradient);
  ++counts_.recorded;
  last_ = entry.backward->run();
  for (Parameter* parameter : parameters_[index]) {
    if (parameter->gradient_written()) entry.written.push_back(parameter);
  }
  entry.held_input.clear();
  entry.held_gradient.clear();
  return without_magnitudes(last_, scales, entry.result_magnitudes);
}

// The forward was a graph and its backward would touch memory that is no longer the weights': both again, eagerly. The
// input still lies where the graph read it.
Stream GraphRunner::backward_after_all(size_t index, Unit& unit, const Stream& output_gradients,
                                       const BatchContext& batch, const UnitContext& context) {
  Entry& entry = chain_->entries[index];
  entry.usable = false;
  UnitState state;
  state.context = std::make_unique<UnitContext>(context);
  const auto behind = entry.input.end() - static_cast<std::ptrdiff_t>(entry.input_magnitudes.size());
  eager_.forward(unit, Stream(entry.input.begin(), behind), batch, state);
  counts_.eager += 2;
  return eager_.backward(unit, output_gradients, batch, state);
}

}  // namespace titan
