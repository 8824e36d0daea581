#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "other_rules.h"
#include "titan/base/text.h"

namespace titan {
namespace {

// One wrong action breaks what follows it on all ranks: more problems would hide the first.
constexpr size_t kMostProblems = 20;
constexpr ActionKind kComputeKinds[] = {ActionKind::forward, ActionKind::backward, ActionKind::input_gradient,
                                        ActionKind::weight_gradient};

struct Place {
  int rank = 0;
  int position = 0;
};

/// Records the position of every action of a table and compares it with those of the actions that the rules put before
/// it.
class Checker {
 public:
  Checker(const ScheduleTable& table, const RuleTable& rules) : table_(table), rules_(rules), facts_(facts_of(table)) {}

  std::vector<std::string> problems(const ExpectedPipeline& expected) {
    check_size(expected);
    if (facts_.stages == 0) return std::move(problems_);
    record_places();
    check_completeness();
    visit([this](const Action& action, const Place& place) {
      if (is_compute(action.kind)) check_compute(action, place);
      if (is_transfer(action.kind)) check_transfer(action, place);
    });
    if (facts_.has_transfers) check_message_order();
    if (facts_.has_weights) check_weights();
    if (facts_.has_reductions) check_reductions();
    if (problems_.empty()) problems_ = deadlocks(table_, rules_);
    return std::move(problems_);
  }

 private:
  template <class Visit>
  void visit(const Visit& visit_leaf) {
    for (int rank = 0; rank < facts_.ranks; ++rank) {
      const auto& actions = table_[static_cast<size_t>(rank)];
      for (int position = 0; position < std::ssize(actions); ++position) {
        for (const Action& leaf : leaves(actions[static_cast<size_t>(position)]))
          visit_leaf(leaf, Place{rank, position});
      }
    }
  }

  bool full() const { return problems_.size() >= kMostProblems; }
  void add(std::string problem) {
    if (!full()) problems_.push_back(std::move(problem));
  }
  void add(const Action& action, const Place& place, std::string_view what) {
    add(fmt::format("rank {}, action {} ({}): {}", place.rank, place.position + 1, to_string(action), what));
  }

  bool does(const Action& action, Does what, Thing thing) const { return has_effect(rules_, action.kind, what, thing); }
  /// The actions of a stage and microbatch that make the thing.
  std::vector<Action> makers(Thing thing, int stage, int microbatch) const {
    std::vector<Action> all;
    for (const ActionKind kind : kComputeKinds) {
      if (has_effect(rules_, kind, Does::acquires, thing)) all.push_back({kind, stage, microbatch});
    }
    return all;
  }
  const Place* find(ActionKind kind, int stage, int microbatch) const {
    auto found = places_.find({kind, stage, microbatch});
    return found == places_.end() ? nullptr : &found->second;
  }
  const Place* find(const Action& action) const { return find(action.kind, action.stage, action.microbatch); }
  /// The action of the table that produces the message.
  std::optional<Action> find_maker(const StageMessage& message) const {
    const Thing thing = message.backward ? Thing::input_gradient : Thing::output;
    for (const Action& maker : makers(thing, message.stage, message.microbatch)) {
      if (find(maker) != nullptr) return maker;
    }
    return std::nullopt;
  }
  bool before(const Place* earlier, const Place& place) const {
    return earlier != nullptr && earlier->rank == place.rank && earlier->position < place.position;
  }
  int rank_of(int stage) const {
    return stage < 0 || stage >= facts_.stages ? -1 : facts_.rank_of_stage[static_cast<size_t>(stage)];
  }
  bool crosses_ranks(const StageMessage& message) const {
    return rank_of(message.stage) != rank_of(message.receiver());
  }

  void check_size(const ExpectedPipeline& expected) {
    auto compare = [&](int found, int wanted, std::string_view what) {
      if (wanted >= 0 && found != wanted) add(fmt::format("the table is for {} {}, not {}", found, what, wanted));
    };
    compare(facts_.ranks, expected.ranks, "ranks");
    compare(facts_.stages, expected.stages, "stages");
    compare(facts_.microbatches, expected.microbatches, "microbatches");
    if (facts_.stages == 0) add("the table has no actions");
  }

  void record_places() {
    visit([this](const Action& action, const Place& place) {
      if (!has_microbatch(action.kind)) return;
      const auto [first, is_new] = places_.insert({{action.kind, action.stage, action.microbatch}, place});
      if (!is_new) {
        add(action, place,
            fmt::format("it is already action {} of rank {}", first->second.position + 1, first->second.rank));
      }
      const int owner = rank_of(action.stage);
      if (owner != place.rank) add(action, place, fmt::format("stage {} belongs to rank {}", action.stage, owner));
    });
  }

  void check_completeness() {
    for (int stage = 0; stage < facts_.stages; ++stage) {
      for (int microbatch = 0; microbatch < facts_.microbatches && !full(); ++microbatch) {
        check_completeness(stage, microbatch);
      }
    }
  }
  void check_completeness(int stage, int microbatch) {
    auto word = [&](ActionKind kind) { return to_string({kind, stage, microbatch}); };
    auto missing = [&](const std::string& what) { add(fmt::format("{} is missing", what)); };
    if (find(ActionKind::forward, stage, microbatch) == nullptr) missing(word(ActionKind::forward));
    const Place* whole = find(ActionKind::backward, stage, microbatch);
    const Place* input = find(ActionKind::input_gradient, stage, microbatch);
    const Place* weight = find(ActionKind::weight_gradient, stage, microbatch);
    if (whole == nullptr && input == nullptr && weight == nullptr) return missing(word(ActionKind::backward));
    if (whole == nullptr && input == nullptr) return missing(word(ActionKind::input_gradient));
    if (whole == nullptr && weight == nullptr) return missing(word(ActionKind::weight_gradient));
    if (whole == nullptr) return;
    for (const auto& [half, kind] :
         {std::pair{input, ActionKind::input_gradient}, {weight, ActionKind::weight_gradient}}) {
      if (half == nullptr) continue;
      add({kind, stage, microbatch}, *half, fmt::format("{} computes it as well", word(ActionKind::backward)));
    }
  }

  void check_compute(const Action& action, const Place& place) {
    if (rank_of(action.stage) != place.rank) return;  // reported as such; what it misses there would be noise
    auto require = [&](const Action& earlier) {
      const Place* found = find(earlier);
      if (found != nullptr && !before(found, place)) add(action, place, to_string(earlier) + " must come before it");
    };
    for (const Thing thing : {Thing::saved, Thing::deferred}) {
      if (!does(action, Does::needs, thing) && !does(action, Does::releases, thing)) continue;
      for (const Action& maker : makers(thing, action.stage, action.microbatch)) require(maker);
    }
    const std::optional<StageMessage> needed = needed_by(action, facts_.stages);
    if (!needed) return;
    if (!crosses_ranks(*needed)) {
      const std::optional<Action> maker = find_maker(*needed);
      if (maker) require(*maker);
    } else if (facts_.has_transfers && !before(find(receive_of(*needed)), place)) {
      add(action, place, fmt::format("{} must come before it", to_string(receive_of(*needed))));
    }
  }

  void check_transfer(const Action& action, const Place& place) {
    const StageMessage message = carried_by(action);
    const bool real =
        std::min(message.stage, message.receiver()) >= 0 && std::max(message.stage, message.receiver()) < facts_.stages;
    if (!real) return add(action, place, "no other stage takes part in it");
    if (!crosses_ranks(message)) return add(action, place, "both stages are on this rank, which needs no transfer");
    if (is_send(action.kind)) {
      const std::optional<Action> maker = find_maker(message);
      if (!maker || !before(find(*maker), place)) add(action, place, "what it sends has to be computed before");
      if (find(receive_of(message)) == nullptr) {
        add(action, place, to_string(receive_of(message)) + " is missing");
      }
    } else if (find(send_of(message)) == nullptr) {
      add(action, place, to_string(send_of(message)) + " is missing");
    }
  }

  /// Messages between two ranks must be received in the order in which they are sent.
  void check_message_order() {
    struct Channel {
      std::vector<StageMessage> sent;
      std::vector<std::pair<Action, Place>> received;
    };
    std::map<std::pair<int, int>, Channel> channels;
    visit([&](const Action& action, const Place& place) {
      if (!is_transfer(action.kind)) return;
      const StageMessage message = carried_by(action);
      Channel& channel = channels[{rank_of(message.stage), rank_of(message.receiver())}];
      if (is_send(action.kind)) channel.sent.push_back(message);
      if (is_receive(action.kind)) channel.received.emplace_back(action, place);
    });
    for (const auto& [ends, channel] : channels) {
      // The missing one has been reported; all pairs behind it would differ.
      if (channel.sent.size() != channel.received.size()) continue;
      for (size_t i = 0; i < channel.sent.size(); ++i) {
        const auto& [action, place] = channel.received[i];
        if (carried_by(action) == channel.sent[i]) continue;
        add(action, place,
            fmt::format("out of order: message {} from rank {} to rank {} is {}", i + 1, ends.first, ends.second,
                        to_string(send_of(channel.sent[i]))));
        break;
      }
    }
  }

  void check_weights() {
    std::set<int> there;
    int rank = 0;
    visit([&](const Action& action, const Place& place) {
      if (place.rank != rank) there.clear();
      rank = place.rank;
      const bool gathers = does(action, Does::posts, Thing::gather);
      const bool releases = does(action, Does::releases, Thing::weights);
      const bool has = there.count(action.stage) > 0;
      if (gathers && has) add(action, place, "the stage's weights are already gathered");
      if (gathers) there.insert(action.stage);
      if (!has && (releases || does(action, Does::needs, Thing::weights))) {
        add(action, place, "the stage's weights are not gathered");
      }
      if (releases) there.erase(action.stage);
      const bool last = place.position + 1 == std::ssize(table_[static_cast<size_t>(rank)]);
      if (last && !there.empty()) add(action, place, fmt::format("{}RESHARD is missing at the end", *there.begin()));
    });
  }

  void check_reductions() {
    std::map<int, std::pair<Action, Place>> reductions;
    visit([&](const Action& action, const Place& place) {
      const bool reduces = does(action, Does::posts, Thing::scatter);
      if (reduces && !reductions.insert({action.stage, {action, place}}).second) {
        add(action, place, "a stage's gradients are reduced once");
      }
      if (!does(action, Does::releases, Thing::saved) && !does(action, Does::drops, Thing::saved)) return;
      auto reduced = reductions.find(action.stage);
      if (reduced != reductions.end() && does(reduced->second.first, Does::lacks, Thing::saved)) {
        add(reduced->second.first, reduced->second.second, to_string(action) + " must come before it");
      }
    });
    for (int stage = 0; stage < facts_.stages; ++stage) {
      if (reductions.count(stage) == 0) add(fmt::format("{}REDUCE_GRAD is missing", stage));
    }
  }

  const ScheduleTable& table_;
  const RuleTable& rules_;
  TableFacts facts_;
  std::map<std::tuple<ActionKind, int, int>, Place> places_;
  std::vector<std::string> problems_;
};

}  // namespace

TableFacts facts_of(const ScheduleTable& table) {
  const auto does = [](const Action& action, Does what, Thing thing) {
    return has_effect(action_rules(), action.kind, what, thing);
  };
  TableFacts facts;
  facts.ranks = static_cast<int>(table.size());
  // Stage → rank → number of its actions there: a damaged table may have a stage on several ranks, where most decide.
  std::map<int, std::map<int, int>> computed;
  for (int rank = 0; rank < facts.ranks; ++rank) {
    for (const Action& action : table[static_cast<size_t>(rank)]) {
      for (const Action& leaf : leaves(action)) {
        facts.has_transfers |= is_transfer(leaf.kind);
        facts.has_weights |= does(leaf, Does::posts, Thing::gather) || does(leaf, Does::releases, Thing::weights);
        facts.has_reductions |= does(leaf, Does::posts, Thing::scatter);
        facts.splits_backward |= does(leaf, Does::releases, Thing::deferred);
        facts.stages = std::max(facts.stages, leaf.stage + 1);
        facts.microbatches = std::max(facts.microbatches, leaf.microbatch + 1);
        if (is_compute(leaf.kind)) ++computed[leaf.stage][rank];
      }
    }
  }
  facts.rank_of_stage.assign(static_cast<size_t>(facts.stages), -1);
  for (const auto& [stage, ranks] : computed) {
    const auto most =
        std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    facts.rank_of_stage[static_cast<size_t>(stage)] = most->first;
  }
  return facts;
}

std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected,
                                        const RuleTable& rules) {
  return Checker(table, rules).problems(expected);
}

std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected) {
  return table_problems(table, expected, action_rules());
}

}  // namespace titan
