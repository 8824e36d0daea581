// Whether the programs of all ranks of a mesh match: every collective is called by all members, every message received.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "rank_machine.h"
#include "titan/base/text.h"
#include "titan/plan/program.h"
#include "titan/schedule/mesh_engine.h"

namespace titan {
namespace {

struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What ranks call and send. A call returns when all members have made it.
class Calls : public Mesh {
 public:
  explicit Calls(std::span<const RankPrograms> ranks) {
    for (const RankPrograms& rank : ranks) ranks_.emplace_back().plan = rank.plan;
  }

  bool apply(size_t r, const Effect& effect, const Action& action) override {
    if (effect.does == Does::waits) return awaited(r, effect, action).empty();
    if (effect.does != Does::posts) return true;
    if (effect.thing == Thing::send || effect.thing == Thing::receive) {
      post_message(r, effect.thing == Thing::send, action);
    } else {
      post_calls(r, effect.thing, action);
    }
    return true;
  }

  void works(size_t, const Action&, Work) override {}

  bool ends(size_t r, const Action& whole) override {
    const bool has_made_calls = std::exchange(ranks_[r].has_made_calls, false);
    if (!has_made_calls && !exchanges_of(*ranks_[r].plan, whole).empty()) {
      throw Difference(fmt::format("rank {}, {}: its rule makes no call", r, to_line(*ranks_[r].plan, whole)));
    }
    ranks_[r].joins = false;
    return true;
  }

  /// What the effect waits for; empty: it need not wait.
  std::string awaited(size_t r, const Effect& effect, const Action& action) const {
    const Rank& rank = ranks_[r];
    const auto of_transfers = [&](bool done) { return done ? std::string() : std::string("its message"); };
    if (effect.thing == Thing::send) return of_transfers(rank.completed >= rank.sent);
    if (effect.thing == Thing::receive) {
      const auto found = rank.receiving.find(carried_by(action));
      return of_transfers(found != rank.receiving.end() && rank.completed >= found->second);
    }
    const auto found = rank.started.find({effect.thing, action.group});
    if (found == rank.started.end()) return {};
    for (const Call& call : found->second) {
      if (std::string missing = awaited(call); !missing.empty()) return missing;
    }
    return {};
  }

  std::string line(const MeshEngine::Blocked& blocked) const {
    const Plan& plan = *ranks_[blocked.rank].plan;
    return fmt::format("rank {}, instruction {} ({}) waits for {}", blocked.rank, blocked.position + 1,
                       to_line(plan, *blocked.whole), awaited(blocked.rank, *blocked.effect, *blocked.part));
  }

  /// NCCL runs the calls of a rank on one stream: each starts when the previous one has completed, and completes when
  /// the peers of all its messages have started.
  bool moves(size_t r) override {
    Rank& rank = ranks_[r];
    if (rank.completed == rank.transfers.size()) return false;
    const Transfer& next = rank.transfers[rank.completed];
    const bool starts = !std::exchange(rank.transfer_started, true);
    for (const Message& message : next) {
      if (starts) ++(message.sends ? message.channel->started_sends : message.channel->started_receives);
    }
    const bool completes = std::all_of(next.begin(), next.end(), [](const Message& message) {
      return std::min(message.channel->started_sends, message.channel->started_receives) >= message.number;
    });
    if (completes) rank.transfer_started = false, ++rank.completed;
    return starts || completes;
  }

 private:
  using Members = std::vector<int64_t>;
  /// The calls of one communicator, each as first made by any member.
  struct Communicator {
    std::vector<std::string> made;
    std::map<int64_t, size_t> count;  // by member
  };
  struct Call {
    std::pair<std::string_view, Members> communicator;
    size_t number = 0;
  };
  /// Messages from one rank to another, in order.
  struct Channel {
    std::vector<std::string> sent, received;
    size_t started_sends = 0, started_receives = 0;
  };
  struct Message {
    Channel* channel;
    bool sends;
    size_t number;
  };
  using Transfer = std::vector<Message>;  // sent and received by one call
  struct Rank {
    const Plan* plan = nullptr;
    std::map<std::pair<Thing, int>, std::vector<Call>> started;  // by group: the calls made last
    bool has_made_calls = false;                                 // in the current instruction
    std::vector<Transfer> transfers;
    bool joins = false;                        // the current instruction's messages join the last transfer
    size_t completed = 0;                      // number of completed transfers
    bool transfer_started = false;             // the next transfer has started
    std::map<StageMessage, size_t> receiving;  // number of the transfer that receives it
    size_t sent = 0;                           // transfers up to the last one that sends
  };

  void post_calls(size_t r, Thing thing, const Action& action) {
    Rank& rank = ranks_[r];
    rank.has_made_calls = true;
    std::vector<Call>& calls = rank.started[{thing, action.group}];
    calls.clear();
    for (const Exchange& exchange : exchanges_of(*rank.plan, action)) {
      if (ranks_of(*rank.plan, exchange.communicator) == 1) continue;
      const std::pair key{exchange.communicator, members_of(*rank.plan, exchange.communicator)};
      Communicator& communicator = communicators_[key];
      const size_t number = communicator.count[static_cast<int64_t>(r)]++;
      // The ranks of a permute may send different amounts, so their bytes are not compared.
      std::string call = exchange.kind == Collective::permute
                             ? std::string(name(exchange.kind))
                             : fmt::format("{} of {} bytes", name(exchange.kind), exchange.traffic.bytes);
      if (action.group >= 0) {
        call += " for " + rank.plan->groups[static_cast<size_t>(action.group)].parameters[0].spec.name;
      }
      if (number == communicator.made.size()) communicator.made.push_back(call);
      if (communicator.made[number] != call) {
        throw Difference(fmt::format("rank {}, {}: call {} of {} is {} here and {} on another member", r,
                                     to_line(*rank.plan, action), number + 1, exchange.communicator, call,
                                     communicator.made[number]));
      }
      calls.push_back({key, number});
    }
  }

  void post_message(size_t r, bool sends, const Action& action) {
    Rank& rank = ranks_[r];
    rank.has_made_calls = true;
    if (!std::exchange(rank.joins, true)) rank.transfers.emplace_back();
    const StageMessage carried = carried_by(action);
    const Members ends{rank_of_stage(rank, carried.stage), rank_of_stage(rank, carried.receiver())};
    Channel& channel = channels_[ends];
    const std::string message = fmt::format("{} of stage {}, microbatch {}", carried.backward ? "gradient" : "output",
                                            carried.stage, carried.microbatch);
    auto& own = sends ? channel.sent : channel.received;
    const auto& others = sends ? channel.received : channel.sent;
    own.push_back(message);
    if (own.size() <= others.size() && others[own.size() - 1] != message) {
      throw Difference(
          fmt::format("rank {}, {}: message {} from rank {} to rank {} is the {} here and the {} on the other rank", r,
                      to_line(*rank.plan, action), own.size(), ends[0], ends[1], message, others[own.size() - 1]));
    }
    rank.transfers.back().push_back({&channel, sends, own.size()});
    if (sends) rank.sent = rank.transfers.size();
    if (!sends) rank.receiving[carried] = rank.transfers.size();
  }

  static int64_t rank_of_stage(const Rank& rank, int stage) {
    const PlanRequest& request = rank.plan->request;
    const Members pipeline = members_of(*rank.plan, communicator_names::kPipeline);
    return pipeline[static_cast<size_t>(request.pipeline->rank_of_stage[static_cast<size_t>(stage)])];
  }

  std::string awaited(const Call& call) const {
    const Communicator& communicator = communicators_.at(call.communicator);
    for (const int64_t member : call.communicator.second) {
      const auto found = communicator.count.find(member);
      if (found != communicator.count.end() && found->second > call.number) continue;
      return fmt::format("call {} of {} on rank {}", call.number + 1, call.communicator.first, member);
    }
    return {};
  }

  std::vector<Rank> ranks_;
  std::map<std::pair<std::string_view, Members>, Communicator> communicators_;
  std::map<Members, Channel> channels_;  // by sender and receiver
};

}  // namespace

std::string mesh_problem(std::span<const RankPrograms> ranks, const RuleTable& rules) {
  Calls calls(ranks);
  MeshEngine engine(calls, rules);
  for (const RankPrograms& rank : ranks) {
    std::vector<const Action*> actions;
    for (const Program& program : rank.programs) {
      for (const Action& action : program.actions) actions.push_back(&action);
    }
    engine.add_rank(std::move(actions));
  }
  try {
    std::vector<std::string> waits;
    for (const MeshEngine::Blocked& blocked : engine.run()) waits.push_back(calls.line(blocked));
    return waits.empty() ? "" : "deadlock: " + join(waits, "; ");
  } catch (const Difference& difference) {
    return difference.what();
  }
}

std::string mesh_problem(std::span<const RankPrograms> ranks) { return mesh_problem(ranks, action_rules()); }

}  // namespace titan
