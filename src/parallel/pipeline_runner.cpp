#include "titan/parallel/pipeline_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/ops/profile_range.h"

namespace titan {
namespace {

at::Tensor zero_loss(const BatchContext& batch) {
  return at::zeros({}, at::TensorOptions(batch.labels.device()).dtype(at::kDouble));
}

}  // namespace

PipelineRunner::PipelineRunner(Executor& executor, std::shared_ptr<Communicator> communicator)
    : executor_(executor), part_(executor.plan().request.pipeline.value()), communicator_(std::move(communicator)) {
  executor_.defer_weight_gradients(part_.splits_backward);
}

at::Tensor PipelineRunner::run(const BatchContext& batch, bool is_last) {
  const int64_t samples = executor_.plan().request.samples;
  TITAN_CHECK(batch.tokens.size(0) == samples * part_.microbatches, batch.tokens.size(0), samples, part_.microbatches);
  std::vector<BatchContext> microbatches;
  for (int64_t m = 0; m < part_.microbatches; ++m) microbatches.push_back(samples_of(batch, m * samples, samples));
  loss_ = zero_loss(batch);
  for (const Action& action : part_.actions) act(action, microbatches, is_last);
  for (auto& [pending, tensors] : sends_) pending->wait();
  sends_.clear();
  TITAN_CHECK(inputs_.empty() && outputs_.empty() && gradients_.empty() && returns_.empty() && live_ == 0);
  if (is_last) executor_.add_twins();
  return std::exchange(loss_, at::Tensor());
}

void PipelineRunner::act(const Action& action, std::span<const BatchContext> microbatches, bool is_last) {
  const Key key{action.stage, action.microbatch};
  auto batch = [&]() -> const BatchContext& { return microbatches[static_cast<size_t>(action.microbatch)]; };
  switch (action.kind) {
    case ActionKind::forward:
      return forward(key, batch());
    case ActionKind::backward:
      return backward(key, batch(), /*weight_gradients_too=*/true);
    case ActionKind::input_gradient:
      return backward(key, batch(), /*weight_gradients_too=*/false);
    case ActionKind::weight_gradient:
      return weight_gradients(key);
    case ActionKind::reduce_grad:
      if (is_last) executor_.reduce_stage(local(action.stage));
      return;
    case ActionKind::overlap:
      for (const Action& part : action.parts) act(part, microbatches, is_last);
      return;
    case ActionKind::unshard:
    case ActionKind::reshard:
      return;  // the residency brings and releases weights unit by unit
    case ActionKind::send_forward:
    case ActionKind::receive_forward:
    case ActionKind::send_backward:
    case ActionKind::receive_backward:
    case ActionKind::batch:
      return transfer(leaves(action), microbatches[0]);
  }
}

void PipelineRunner::forward(Key key, const BatchContext& batch) {
  const auto [stage, microbatch] = key;
  Stream input = is_first(stage) ? Stream() : taken(inputs_, key);
  most_live_ = std::max(most_live_, ++live_);
  const Stream output = executor_.forward_stage(local(stage), std::move(input), batch, microbatch);
  if (is_last_stage(stage)) {
    loss_ = loss_ + output[0];
  } else if (is_here(stage + 1)) {
    inputs_[{stage + 1, microbatch}] = {packed(output[0]), nullptr};
  } else {
    outputs_[key] = {packed(output[0]), nullptr};
  }
}

void PipelineRunner::backward(Key key, const BatchContext& batch, bool weight_gradients_too) {
  const auto [stage, microbatch] = key;
  Stream gradients = is_last_stage(stage) ? Executor::loss_gradient(batch) : taken(gradients_, key);
  gradients = executor_.backward_stage(local(stage), std::move(gradients), batch, microbatch);
  if (weight_gradients_too) weight_gradients(key);
  if (is_first(stage)) return;
  if (is_here(stage - 1)) {
    gradients_[{stage - 1, microbatch}] = {packed(gradients[0]), nullptr};
  } else {
    returns_[key] = {packed(gradients[0]), nullptr};
  }
}

void PipelineRunner::weight_gradients(Key key) {
  executor_.weight_gradients(local(key.first), key.second);
  --live_;
}

void PipelineRunner::transfer(std::span<const Action> actions, const BatchContext& batch) {
  const ProfileRange range("send and receive");
  std::vector<Message> receives, sends;
  std::vector<std::pair<Parcels*, Key>> arriving;
  std::vector<at::Tensor> leaving;
  auto send = [&](Parcels& from, Key key, int64_t to_stage) {
    leaving.push_back(taken(from, key)[0]);
    sends.push_back({rank_of(to_stage), {leaving.back()}});
  };
  auto receive = [&](Parcels& into, Key key, int64_t from_stage) {
    into[key].stream = empty_stream(batch);
    receives.push_back({rank_of(from_stage), {into[key].stream}});
    arriving.emplace_back(&into, key);
  };
  for (const Action& action : actions) {
    const Key key{action.stage, action.microbatch};
    if (action.kind == ActionKind::send_forward) send(outputs_, key, action.stage + 1);
    if (action.kind == ActionKind::send_backward) send(returns_, key, action.stage - 1);
    if (action.kind == ActionKind::receive_forward) receive(inputs_, key, action.stage - 1);
    if (action.kind == ActionKind::receive_backward) receive(gradients_, key, action.stage + 1);
  }
  std::shared_ptr<PendingCollective> pending = communicator_->transfer(std::move(receives), std::move(sends));
  for (auto& [parcels, key] : arriving) (*parcels)[key].arrival = pending;
  if (!leaving.empty()) sends_.emplace_back(std::move(pending), std::move(leaving));
  while (!sends_.empty() && sends_.front().first->inputs_free()) sends_.pop_front();
}

at::Tensor PipelineRunner::infer(const BatchContext& batch, UnitMode mode) {
  at::Tensor result = mode == UnitMode::logits ? at::Tensor() : zero_loss(batch);
  at::Tensor stream;
  for (int64_t stage = 0; stage < part_.stage_count(); ++stage) {
    if (!is_here(stage)) continue;
    if (!is_first(stage) && !is_here(stage - 1)) {
      stream = empty_stream(batch);
      communicator_->transfer({{rank_of(stage - 1), {stream}}}, {})->wait();
    }
    const Stream output = executor_.infer_stage(local(stage), is_first(stage) ? Stream() : Stream{stream}, batch, mode);
    if (is_last_stage(stage)) {
      result = output[0];
    } else {
      stream = packed(output[0]);
      if (!is_here(stage + 1)) communicator_->transfer({}, {{rank_of(stage + 1), {stream}}})->wait();
    }
  }
  return result;
}

bool PipelineRunner::is_here(int64_t stage) const {
  return std::any_of(part_.stages.begin(), part_.stages.end(),
                     [&](const StageSpan& span) { return span.number == stage; });
}

size_t PipelineRunner::local(int64_t stage) const {
  const auto found = std::find_if(part_.stages.begin(), part_.stages.end(),
                                  [&](const StageSpan& span) { return span.number == stage; });
  TITAN_CHECK(found != part_.stages.end(), stage);
  return static_cast<size_t>(found - part_.stages.begin());
}

at::Tensor PipelineRunner::packed(const at::Tensor& stream) const {
  return stream.to(scalar_type(executor_.plan().request.compute)).contiguous();
}

at::Tensor PipelineRunner::empty_stream(const BatchContext& batch) const {
  const Plan& plan = executor_.plan();
  const int64_t rows = batch.tokens.numel() / plan.request.place.mesh.size(MeshAxis::tp);
  return at::empty({rows, plan.stream_width}, batch.labels.options().dtype(scalar_type(plan.request.compute)));
}

Stream PipelineRunner::taken(Parcels& parcels, Key key) {
  const auto found = parcels.find(key);
  TITAN_CHECK(found != parcels.end() && "a schedule that was checked brings every input", key.first, key.second);
  const Parcel parcel = std::move(found->second);
  parcels.erase(found);
  if (parcel.arrival) {
    const ProfileRange range("wait for a stage");
    parcel.arrival->wait();
  }
  return {parcel.stream};
}

}  // namespace titan
