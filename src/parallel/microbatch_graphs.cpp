#include "titan/parallel/microbatch_graphs.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "titan/base/error.h"
#include "titan/parallel/recorded_passes.h"

namespace titan {
namespace {

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

MicrobatchGraphs::MicrobatchGraphs(std::vector<Parameter*> parameters, std::unique_ptr<WorkRecorder> recorder)
    : parameters_(std::move(parameters)), recorder_(std::move(recorder)) {
  TITAN_CHECK(recorder_ != nullptr, parameters_.size());
}

MicrobatchGraphs::Entry* MicrobatchGraphs::entry_for(const BatchContext& batch) {
  const bool first = std::exchange(first_of_step_, false);
  if (!batch.bounds.document_starts.empty()) return nullptr;  // other documents, other kernel calls
  std::vector<int64_t> key{first};
  for (const at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.positions}) append_shape(key, *tensor);
  if (!entries_.contains(key) && entries_.size() == kMostRecordedPasses) return nullptr;
  Entry& entry = entries_[key];
  return ++entry.seen <= kEagerPasses ? nullptr : &entry;
}

at::Tensor MicrobatchGraphs::run(const BatchContext& batch, const Compute& compute) {
  Entry* entry = entry_for(batch);
  if (entry && !entry->graph) return record(*entry, batch, compute);
  if (entry) entry->usable = entry->usable && entry->addresses == addresses_of(parameters_, /*with_gradients=*/true);
  if (!entry || !entry->usable) return compute(batch);
  copy_batch(entry->batch, batch);
  const at::Tensor loss = entry->graph->run()[0];
  for (Parameter* parameter : entry->written) parameter->mark_gradient_written();
  return loss;
}

at::Tensor MicrobatchGraphs::record(Entry& entry, const BatchContext& batch, const Compute& compute) {
  recorder_->prepare();
  entry.addresses = addresses_of(parameters_, /*with_gradients=*/true);
  entry.batch = place_for(batch);
  entry.graph = recorder_->record([&entry, compute]() -> Stream { return {compute(entry.batch)}; });
  const at::Tensor loss = entry.graph->run()[0];
  for (Parameter* parameter : parameters_) {
    if (parameter->trainable() && parameter->gradient_written()) entry.written.push_back(parameter);
  }
  return loss;
}

}  // namespace titan
