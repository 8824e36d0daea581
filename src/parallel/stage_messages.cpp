#include "titan/parallel/stage_messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/tensor_checks.h"
#include "titan/parallel/weight_store.h"

namespace titan {

int64_t rows_of(const BatchContext& batch, const Plan& plan) {
  return batch.tokens.numel() / plan.request.place.mesh.size(MeshAxis::tp);
}

void check_hidden(const HiddenStates& hidden, const std::vector<HiddenTensor>& tensors, int64_t rows, size_t more,
                  std::string_view where) {
  TITAN_CHECK(hidden.size() == tensors.size() + more, where, hidden.size(), tensors.size(), more);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!hidden[i].defined()) continue;
    TITAN_CHECK(hidden[i].dim() == 2 && hidden[i].size(0) == rows && hidden[i].size(1) == tensors[i].width, where,
                tensors[i].name, summary_of(hidden[i]), rows, tensors[i].width);
  }
}

HiddenStates StageMessages::take(Key key) {
  const auto found = entries_.find(key);
  TITAN_CHECK(found != entries_.end() && !found->second.receiving, key.stage, key.microbatch);
  HiddenStates hidden = std::move(found->second.hidden);
  entries_.erase(found);
  return hidden;
}

void StageMessages::hand_off(const Action& action, const BatchContext& batch) {
  const StageMessage message = carried_by(action);
  put({message.backward, message.receiver(), message.microbatch},
      packed(take({message.backward, message.stage, message.microbatch}),
             plan_.message_of(message.stage, /*of_input=*/message.backward), batch));
}

void StageMessages::transfer(const Action& action, const BatchContext& batch) {
  std::vector<Message> receives, sends;
  std::vector<Entry*> received;
  HiddenStates sent;
  for (const Action& part : leaves(action)) {
    const StageMessage message = carried_by(part);
    const Key key{message.backward, part.stage, part.microbatch};
    // A stage sends its output and its input's gradient, and receives its input and its output's gradient.
    const std::vector<HiddenTensor>& tensors = plan_.message_of(part.stage, is_send(part.kind) == message.backward);
    if (is_send(part.kind)) {
      const HiddenStates hidden = packed(take(key), tensors, batch);
      sent.insert(sent.end(), hidden.begin(), hidden.end());
      sends.push_back({rank_of(message.receiver()), hidden});
    } else {
      Entry& entry = entries_[key];
      entry.hidden = empty_message(tensors, batch);
      receives.push_back({rank_of(message.stage), entry.hidden});
      received.push_back(&entry);
    }
  }
  const std::shared_ptr<PendingCollective> pending = pipeline_->transfer(std::move(receives), std::move(sends));
  for (Entry* entry : received) entry->receiving = pending;
  if (!sent.empty()) sends_.emplace_back(pending, std::move(sent));
  // A send reads its tensors until it completes; those of completed ones are released without a wait.
  while (!sends_.empty() && sends_.front().first->inputs_free()) sends_.pop_front();
}

void StageMessages::wait(Key key) {
  Entry& entry = entries_.at(key);
  entry.receiving->wait();
  entry.receiving.reset();
}

void StageMessages::wait_sends() {
  for (auto& [pending, tensors] : sends_) pending->wait();
  sends_.clear();
}

HiddenStates StageMessages::empty_message(const std::vector<HiddenTensor>& tensors, const BatchContext& batch) const {
  const at::TensorOptions options =
      batch.labels.options().dtype(scalar_type(plan_.request.training.mixed_precision_param));
  HiddenStates message;
  for (const HiddenTensor& tensor : tensors) {
    message.push_back(at::empty({rows_of(batch, plan_), tensor.width}, options));
  }
  return message;
}

HiddenStates StageMessages::packed(HiddenStates hidden, const std::vector<HiddenTensor>& tensors,
                                   const BatchContext& batch) const {
  check_hidden(hidden, tensors, rows_of(batch, plan_), /*more=*/0, "a message between stages");
  const at::ScalarType type = scalar_type(plan_.request.training.mixed_precision_param);
  for (size_t i = 0; i < tensors.size(); ++i) {
    // The next stage has not used what it was handed: the gradient is zero.
    if (!hidden[i].defined()) {
      hidden[i] = at::zeros({rows_of(batch, plan_), tensors[i].width}, batch.labels.options().dtype(type));
    }
    hidden[i] = hidden[i].to(type).contiguous();
  }
  return hidden;
}

}  // namespace titan
