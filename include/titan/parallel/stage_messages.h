// Hidden states and their gradients on the way from one unit to another.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/model/model.h"
#include "titan/plan/plan.h"

namespace titan {

/// Tokens of a microbatch that this rank holds between units: rows of hidden states.
int64_t rows_of(const BatchContext& batch, const Plan& plan);

/// Throws InvariantError unless `hidden` begins with these tensors, [rows, width], and has `more` others behind them.
/// Gradients may be undefined. `where` is for the message.
void check_hidden(const HiddenStates& hidden, const std::vector<HiddenTensor>& tensors, int64_t rows, size_t more,
                  std::string_view where);

/// Hidden states and gradients between units, between stages of this rank, and in messages to and from the other ranks
/// of a pipeline.
class StageMessages {
 public:
  struct Key {
    bool backward;  // a gradient
    int stage;      // the stage that receives or produced it
    int microbatch;
    auto operator<=>(const Key&) const = default;
  };

  /// `pipeline` joins the ranks of the axis pp; null without a pipeline.
  StageMessages(const Plan& plan, std::shared_ptr<Communicator> pipeline)
      : plan_(plan), pipeline_(std::move(pipeline)) {}

  void put(Key key, HiddenStates hidden) { entries_[key] = {std::move(hidden), nullptr}; }
  HiddenStates take(Key key);
  /// HANDOFF: to the neighbouring stage on this rank, rounded as a message is. `batch` has the shape of all
  /// microbatches.
  void hand_off(const Action& action, const BatchContext& batch);
  /// Executes SEND, RECEIVE or a BATCH of them as one call.
  void transfer(const Action& action, const BatchContext& batch);
  /// WAIT_F, WAIT_B.
  void wait(Key key);
  void wait_sends();
  bool empty() const { return entries_.empty() && sends_.empty(); }
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    HiddenStates hidden;
    std::shared_ptr<PendingCollective> receiving;  // null: it has arrived
  };

  int64_t rank_of(int stage) const { return plan_.request.pipeline->rank_of_stage[static_cast<size_t>(stage)]; }
  HiddenStates empty_message(const std::vector<HiddenTensor>& tensors, const BatchContext& batch) const;
  /// `hidden` in the form in which it is sent: contiguous, in the compute dtype.
  HiddenStates packed(HiddenStates hidden, const std::vector<HiddenTensor>& tensors, const BatchContext& batch) const;

  const Plan& plan_;
  std::shared_ptr<Communicator> pipeline_;
  std::map<Key, Entry> entries_;
  std::deque<std::pair<std::shared_ptr<PendingCollective>, HiddenStates>> sends_;
};

}  // namespace titan
