// The hidden states and gradients that flow through the stages of this rank: between units, from stage to stage, and
// through messages to and from other ranks of a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/model/unit.h"
#include "titan/parallel/plan.h"

namespace titan {

class StageStreams {
 public:
  enum class Direction { forward, backward };
  /// One stream: at a stage of the model, of a microbatch.
  struct Key {
    Direction direction;
    int stage;
    int microbatch;
    auto operator<=>(const Key&) const = default;
  };

  /// `pipeline` joins the ranks of the axis pp; null where there is one.
  StageStreams(const Plan& plan, std::shared_ptr<Communicator> pipeline);

  void put(Key key, Stream stream) { parcels_[key] = {std::move(stream), nullptr}; }
  Stream take(Key key);
  /// HANDOFF: to the neighbouring stage on this rank, rounded as a message is.
  void hand_off(const Action& action);
  /// SEND, RECEIVE or a BATCH of them: posted as one call. `batch` has the shape of all microbatches.
  void transfer(const Action& action, const BatchContext& batch);
  /// WAIT_F, WAIT_B: what was received for this stage and microbatch is here.
  void wait(Key key);
  void wait_sends();
  /// Nothing flows, nothing is being sent.
  bool empty() const { return parcels_.empty() && sends_.empty(); }

 private:
  struct Parcel {
    Stream stream;
    std::shared_ptr<PendingCollective> arrival;  // null: it is here
  };

  int64_t rank_of(int stage) const { return plan_.request.pipeline->rank_of_stage[static_cast<size_t>(stage)]; }
  /// As it travels: in one piece, in the dtype that units compute in.
  Stream packed(Stream stream) const;
  Stream room_for_message(const BatchContext& batch) const;

  const Plan& plan_;
  std::shared_ptr<Communicator> pipeline_;
  std::map<Key, Parcel> parcels_;
  std::deque<std::pair<std::shared_ptr<PendingCollective>, Stream>> sends_;
};

}  // namespace titan
