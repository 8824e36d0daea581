#include "titan/schedule/table.h"

#include <algorithm>
#include <map>

#include "titan/base/error.h"

namespace titan {
namespace {

/// The table with `change` applied to each rank's list.
template <class Change>
ScheduleTable per_rank(const ScheduleTable& table, const Change& change) {
  ScheduleTable changed;
  for (const std::vector<Action>& actions : table) changed.push_back(change(actions));
  return changed;
}

ScheduleTable unmerge(const ScheduleTable& table, ActionKind kind) {
  return per_rank(table, [kind](const std::vector<Action>& actions) {
    std::vector<Action> plain;
    for (const Action& action : actions) {
      if (action.kind == kind) {
        plain.insert(plain.end(), action.parts.begin(), action.parts.end());
      } else {
        plain.push_back(action);
      }
    }
    return plain;
  });
}

bool contains(const std::vector<int>& stages, int stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

/// The first `most` different stages that `actions` computes with, from `first` on. Both halves of a merged pair count,
/// even if the second exceeds `most`: they need their weights at the same time.
std::vector<int> next_stages(const std::vector<Action>& actions, size_t first, int most) {
  std::vector<int> stages;
  for (size_t i = first; i < actions.size() && std::ssize(stages) < most; ++i) {
    for (const Action& leaf : leaves(actions[i])) {
      if (is_compute(leaf.kind) && !contains(stages, leaf.stage)) stages.push_back(leaf.stage);
    }
  }
  return stages;
}

std::vector<Action> with_gathers(const std::vector<Action>& actions, int most) {
  std::vector<Action> all;
  std::vector<int> gathered;
  for (size_t i = 0; i < actions.size(); ++i) {
    const std::vector<int> wanted = next_stages(actions, i, most);
    if (!wanted.empty()) {
      std::erase_if(gathered, [&](int stage) {
        if (contains(wanted, stage)) return false;
        all.push_back({ActionKind::reshard, stage});
        return true;
      });
    }
    for (const int stage : wanted) {
      if (contains(gathered, stage)) continue;
      all.push_back({ActionKind::unshard, stage});
      gathered.push_back(stage);
    }
    all.push_back(actions[i]);
  }
  for (const int stage : gathered) all.push_back({ActionKind::reshard, stage});
  return all;
}

std::vector<Action> with_reductions(const std::vector<Action>& actions) {
  std::map<int, size_t> last;
  for (size_t i = 0; i < actions.size(); ++i) {
    for (const Action& leaf : leaves(actions[i])) {
      if (finishes(leaf.kind)) last[leaf.stage] = i;
    }
  }
  std::vector<Action> all;
  for (size_t i = 0; i < actions.size(); ++i) {
    all.push_back(actions[i]);
    for (const auto& [stage, position] : last) {
      if (position == i) all.push_back({ActionKind::reduce_grad, stage});
    }
  }
  return all;
}

bool computes(const Action& action) { return is_compute(leaves(action).front().kind); }

/// The positions of a table's transfers: the rank, and the action after which they are added. Position 0 is the
/// beginning of a rank's list, i + 1 is after its i-th action.
class TransferPlan {
 public:
  TransferPlan(const ScheduleTable& table, const ActionTimes& times)
      : table_(table), facts_(facts_of(table)), simulation_(simulate(table, times)), added_(table.size()) {
    for (size_t rank = 0; rank < table.size(); ++rank) added_[rank].resize(table[rank].size() + 1);
    for (const Sent& sent : in_global_order()) {
      added_[sent.rank][sent.place].push_back(send_of(sent.message));
      const size_t receiver = rank_of(sent.message.receiver());
      added_[receiver][place_of_receive(receiver, sent.when)].push_back(receive_of(sent.message));
    }
  }

  ScheduleTable apply() const {
    ScheduleTable all(table_.size());
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      for (size_t i = 0; i <= table_[rank].size(); ++i) {
        if (i > 0) all[rank].push_back(table_[rank][i - 1]);
        for (const Action& transfer : added_[rank][i]) all[rank].push_back(transfer);
      }
    }
    return all;
  }

 private:
  struct Sent {
    double when = 0;
    size_t rank = 0;   // the sending rank
    size_t place = 0;  // position of the send in that rank's list
    StageMessage message;
  };

  size_t rank_of(int stage) const { return static_cast<size_t>(facts_.rank_of_stage[static_cast<size_t>(stage)]); }

  /// Every message between ranks. Sender and receiver both add it to their programs in this order, which is total, so
  /// that they agree on the order of messages that are sent at the same time.
  std::vector<Sent> in_global_order() const {
    std::vector<Sent> all;
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      for (size_t i = 0; i < table_[rank].size(); ++i) {
        for (const Action& leaf : leaves(table_[rank][i])) {
          const std::optional<StageMessage> made = made_by(leaf, facts_.stages);
          if (made && rank_of(made->receiver()) != rank)
            all.push_back({simulation_.spans[rank][i].end, rank, i + 1, *made});
        }
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Sent& a, const Sent& b) { return a.when < b.when; });
    return all;
  }

  /// The place after the last action that the rank has ended at `when`. Later actions end later, so nothing that the
  /// sender did before the message can have waited for them.
  size_t place_of_receive(size_t rank, double when) const {
    size_t place = 0;
    for (size_t i = 0; i < table_[rank].size() && simulation_.spans[rank][i].end <= when; ++i) {
      if (computes(table_[rank][i])) place = i + 1;
    }
    return place;
  }

  const ScheduleTable& table_;
  TableFacts facts_;
  Simulation simulation_;
  std::vector<std::vector<std::vector<Action>>> added_;  // [rank][position]
};

/// The position in a rank's list that needs each message.
std::map<StageMessage, size_t> consumers_of(const std::vector<Action>& actions, int stages) {
  std::map<StageMessage, size_t> consumers;
  for (size_t position = 0; position < actions.size(); ++position) {
    for (const Action& leaf : leaves(actions[position])) {
      if (const std::optional<StageMessage> needed = needed_by(leaf, stages)) consumers[*needed] = position;
    }
  }
  return consumers;
}

std::vector<Action> with_batches(const std::vector<Action>& actions, int stages) {
  const std::map<StageMessage, size_t> consumers = consumers_of(actions, stages);
  // Waiting for one message of a batch waits for all, so messages that are needed at different times are separate.
  auto consumer = [&](const Action& receive) {
    const auto found = consumers.find(carried_by(receive));
    return found == consumers.end() ? actions.size() : found->second;
  };
  auto waits_elsewhere = [&](const Action& one, const Action& other) {
    return is_receive(one.kind) && is_receive(other.kind) && consumer(one) != consumer(other);
  };
  std::vector<Action> all;
  for (const Action& action : actions) {
    const bool follows = is_transfer(action.kind) && !all.empty() &&
                         (is_transfer(all.back().kind) || all.back().kind == ActionKind::batch);
    bool joins = follows;
    if (follows) {
      for (const Action& part : leaves(all.back())) joins = joins && !waits_elsewhere(action, part);
    }
    if (!joins) {
      all.push_back(action);
      continue;
    }
    if (all.back().kind != ActionKind::batch) {
      Action batch{ActionKind::batch};
      batch.parts.push_back(std::move(all.back()));
      all.back() = std::move(batch);
    }
    all.back().parts.push_back(action);
  }
  return all;
}

}  // namespace

ScheduleTable split_overlapped(const ScheduleTable& table) { return unmerge(table, ActionKind::overlap); }

ScheduleTable split_batches(const ScheduleTable& table) { return unmerge(table, ActionKind::batch); }

ScheduleTable add_weight_gathers(const ScheduleTable& table, int most) {
  TITAN_CHECK(most >= 1, most);
  return per_rank(table, [most](const std::vector<Action>& actions) { return with_gathers(actions, most); });
}

ScheduleTable add_gradient_reductions(const ScheduleTable& table) { return per_rank(table, with_reductions); }

ScheduleTable add_transfers(const ScheduleTable& table, const ActionTimes& times) {
  TITAN_CHECK(!facts_of(table).has_transfers);
  ActionTimes free_messages = times;
  free_messages.transfer = 0;
  return TransferPlan(table, free_messages).apply();
}

ScheduleTable batch_transfers(const ScheduleTable& table) {
  const int stages = facts_of(table).stages;
  return per_rank(table, [stages](const std::vector<Action>& actions) { return with_batches(actions, stages); });
}

ScheduleTable lower(const ScheduleTable& table, const LoweringOptions& options) {
  ScheduleTable lowered = options.overlapped ? table : split_overlapped(table);
  if (options.sharded) lowered = add_weight_gathers(lowered, options.most_gathered_stages);
  lowered = add_gradient_reductions(lowered);
  lowered = add_transfers(lowered, options.times);
  return batch_transfers(lowered);
}

}  // namespace titan
