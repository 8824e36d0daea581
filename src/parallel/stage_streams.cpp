#include "titan/parallel/stage_streams.h"

#include <ATen/ops/empty.h>

#include "titan/base/error.h"
#include "titan/parallel/weight_store.h"

namespace titan {

StageStreams::StageStreams(const Plan& plan, std::shared_ptr<Communicator> pipeline)
    : plan_(plan), pipeline_(std::move(pipeline)) {}

Stream StageStreams::take(Key key) {
  const auto found = parcels_.find(key);
  TITAN_CHECK(found != parcels_.end() && !found->second.arrival, key.stage, key.microbatch);
  Stream stream = std::move(found->second.stream);
  parcels_.erase(found);
  return stream;
}

void StageStreams::hand_off(const Action& action) {
  const bool forward = action.kind == ActionKind::handoff_forward;
  const Key from{forward ? Direction::forward : Direction::backward, action.stage, action.microbatch};
  Key to = from;
  to.stage += forward ? 1 : -1;
  put(to, packed(take(from)));
}

void StageStreams::transfer(const Action& action, const BatchContext& batch) {
  std::vector<Message> receives, sends;
  std::vector<Parcel*> arriving;
  Stream leaving;
  for (const Action& part : leaves(action)) {
    const bool forward = part.kind == ActionKind::send_forward || part.kind == ActionKind::receive_forward;
    const Key key{forward ? Direction::forward : Direction::backward, part.stage, part.microbatch};
    if (is_send(part.kind)) {
      leaving.push_back(packed(take(key))[0]);
      sends.push_back({rank_of(part.stage + (forward ? 1 : -1)), {leaving.back()}});
    } else {
      Parcel& parcel = parcels_[key];
      parcel.stream = room_for_message(batch);
      receives.push_back({rank_of(part.stage + (forward ? -1 : 1)), parcel.stream});
      arriving.push_back(&parcel);
    }
  }
  const std::shared_ptr<PendingCollective> pending = pipeline_->transfer(std::move(receives), std::move(sends));
  for (Parcel* parcel : arriving) parcel->arrival = pending;
  if (!leaving.empty()) sends_.emplace_back(pending, std::move(leaving));
  while (!sends_.empty() && sends_.front().first->inputs_free()) sends_.pop_front();
}

void StageStreams::wait(Key key) {
  Parcel& parcel = parcels_.at(key);
  parcel.arrival->wait();
  parcel.arrival.reset();
}

void StageStreams::wait_sends() {
  for (auto& [pending, tensors] : sends_) pending->wait();
  sends_.clear();
}

Stream StageStreams::packed(Stream stream) const {
  return {stream[0].to(scalar_type(plan_.request.compute)).contiguous()};
}

Stream StageStreams::room_for_message(const BatchContext& batch) const {
  const int64_t rows = batch.tokens.numel() / plan_.request.place.mesh.size(MeshAxis::tp);
  return {at::empty({rows, plan_.stream_width}, batch.labels.options().dtype(scalar_type(plan_.request.compute)))};
}

}  // namespace titan
