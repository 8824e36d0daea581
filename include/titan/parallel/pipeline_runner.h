// Runs this rank's part of a pipeline schedule: the actions of the plan one by one, through the same executor that runs
// a model without a pipeline. What crosses ranks goes through one communicator; what passes between two stages of this
// rank is handed over; both are forgotten as soon as they are used.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "titan/distributed/communicator.h"
#include "titan/parallel/executor.h"

namespace titan {

class PipelineRunner {
 public:
  /// `executor` was made for a plan with a pipeline and outlives this; `communicator` joins the ranks of the axis pp.
  PipelineRunner(Executor& executor, std::shared_ptr<Communicator> communicator);

  /// One pass, forward and backward: `batch` is cut by samples into the plan's microbatches. With `is_last`, the step's
  /// last pass, gradients are reduced. → the sum of the losses (fp64) on the rank with the model's last stage, 0 on
  /// the others.
  at::Tensor run(const BatchContext& batch, bool is_last);
  /// Forward of one microbatch that keeps nothing, stage after stage: the loss on the last stage's rank, a zero on
  /// the others; for UnitMode::logits the logits, undefined on the others.
  at::Tensor infer(const BatchContext& batch, UnitMode mode);

  /// The most pairs of stage and microbatch whose activations were kept at once, in all passes so far.
  int64_t most_live() const { return most_live_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // stage in the model's order, microbatch
  /// A stream that waits for its use, perhaps still on its way.
  struct Parcel {
    at::Tensor stream;
    std::shared_ptr<PendingCollective> arrival;  // null: it is here
  };
  using Parcels = std::map<Key, Parcel>;

  void act(const Action& action, std::span<const BatchContext> microbatches, bool is_last);
  void forward(Key key, const BatchContext& batch);
  void backward(Key key, const BatchContext& batch, bool weight_gradients_too);
  void weight_gradients(Key key);
  /// One call for all transfers of a merged action.
  void transfer(std::span<const Action> actions, const BatchContext& batch);

  bool is_first(int64_t stage) const { return stage == 0; }
  bool is_last_stage(int64_t stage) const { return stage + 1 == part_.stage_count(); }
  bool is_here(int64_t stage) const;
  int64_t rank_of(int64_t stage) const { return part_.rank_of_stage[static_cast<size_t>(stage)]; }
  size_t local(int64_t stage) const;
  /// As it travels: in one piece, in the dtype that units compute in.
  at::Tensor packed(const at::Tensor& stream) const;
  at::Tensor empty_stream(const BatchContext& batch) const;
  static Stream taken(Parcels& parcels, Key key);

  Executor& executor_;
  const PipelinePart& part_;
  std::shared_ptr<Communicator> communicator_;

  Parcels inputs_;     // what enters a stage
  Parcels outputs_;    // what left a stage and has to be sent
  Parcels gradients_;  // of what left a stage, for its backward
  Parcels returns_;    // of what entered a stage, to be sent back
  std::deque<std::pair<std::shared_ptr<PendingCollective>, std::vector<at::Tensor>>> sends_;
  at::Tensor loss_;
  int64_t live_ = 0;
  int64_t most_live_ = 0;
};

}  // namespace titan
