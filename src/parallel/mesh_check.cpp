// Whether the programs of all ranks of a mesh go together.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "titan/parallel/program.h"

namespace titan {
namespace {

using enum ActionKind;

struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// All ranks at once: each does its instructions in order, and waits where it must for what others have to do.
class MeshWalk {
 public:
  explicit MeshWalk(std::span<const RankPrograms> ranks) {
    for (const RankPrograms& rank : ranks) {
      ranks_.emplace_back().plan = rank.plan;
      for (const Program& program : rank.programs) {
        for (const Action& action : program.actions) ranks_.back().actions.push_back(&action);
      }
    }
  }

  /// What each rank that never comes to its end waits for.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        while (advance(r) || advance_transfers(ranks_[r])) moved = true;
      }
    }
    std::string stuck;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.next == rank.actions.size()) continue;
      stuck += fmt::format("rank {} deadlocks at instruction {} ({}); ", r, rank.next + 1,
                           to_line(*rank.plan, *rank.actions[rank.next]));
    }
    return stuck;
  }

 private:
  using Members = std::vector<int64_t>;
  /// The calls of one communicator, as whoever made each first has made it.
  struct Calls {
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
  /// One call. NCCL runs the calls of a rank on one stream: each starts when the one before it has completed, and
  /// completes when the other ends of all its messages have started.
  struct Transfer {
    struct Part {
      Channel* channel;
      bool sends;
      size_t number;
    };
    std::vector<Part> parts;
  };
  struct Rank {
    const Plan* plan = nullptr;
    std::vector<const Action*> actions;
    size_t next = 0;
    bool posted = false;                      // what the next instruction sends is on its way
    std::vector<Call> now;                    // calls of the next instruction
    std::map<int, Call> gathers, reductions;  // under way, by group
    std::vector<Transfer> transfers;
    size_t completed = 0;                                    // of the transfers
    bool started = false;                                    // the next of them
    std::map<std::tuple<bool, int, int>, size_t> receiving;  // number of the transfer that receives these hidden states
    size_t sent = 0;                                         // transfers up to the last one that sends
  };

  bool advance(size_t r) {
    Rank& rank = ranks_[r];
    if (rank.next == rank.actions.size()) return false;
    const Action& action = *rank.actions[rank.next];
    bool moved = false;
    if (!std::exchange(rank.posted, true)) {
      post(static_cast<int64_t>(r), action);
      moved = true;
    }
    if (!is_over(rank, action)) return moved;
    rank.posted = false;
    rank.now.clear();
    ++rank.next;
    return true;
  }

  void post(int64_t r, const Action& action) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (is_transfer(leaves(action)[0].kind)) return post_messages(r, action);
    for (const Exchange& exchange : exchanges_of(*rank.plan, action)) {
      if (ranks_of(*rank.plan, exchange.communicator) == 1) continue;
      const std::pair communicator{exchange.communicator, members_of(r, exchange.communicator)};
      Calls& calls = calls_[communicator];
      const size_t number = calls.count[r]++;
      std::string call = fmt::format("{} of {} bytes", name(exchange.kind), exchange.traffic.bytes);
      if (action.group >= 0) {
        call += " for " + rank.plan->groups[static_cast<size_t>(action.group)].parameters[0].spec.name;
      }
      if (number == calls.made.size()) calls.made.push_back(call);
      if (calls.made[number] != call) {
        throw Difference(fmt::format("rank {}, {}: its call {} of {} is {}, another member's {}", r,
                                     to_line(*rank.plan, action), number + 1, exchange.communicator, call,
                                     calls.made[number]));
      }
      const Call made{communicator, number};
      if (action.kind == unshard) rank.gathers[action.group] = made;
      if (action.kind == reduce_scatter || action.kind == all_reduce) rank.reductions[action.group] = made;
      rank.now.push_back(made);
    }
  }

  bool advance_transfers(Rank& rank) {
    if (rank.completed == rank.transfers.size()) return false;
    const Transfer& next = rank.transfers[rank.completed];
    const bool starts = !std::exchange(rank.started, true);
    for (const Transfer::Part& part : next.parts) {
      if (starts) ++(part.sends ? part.channel->started_sends : part.channel->started_receives);
    }
    const bool completes = std::all_of(next.parts.begin(), next.parts.end(), [](const Transfer::Part& part) {
      return std::min(part.channel->started_sends, part.channel->started_receives) >= part.number;
    });
    if (completes) rank.started = false, ++rank.completed;
    return starts || completes;
  }

  void post_messages(int64_t r, const Action& action) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    Transfer& transfer = rank.transfers.emplace_back();
    for (const Action& part : leaves(action)) {
      const bool back = part.kind == send_backward || part.kind == receive_backward;
      const bool sends = is_send(part.kind);
      const int other = part.stage + (back == sends ? -1 : 1);
      const Members pipeline = rank.plan->request.place.mesh.group(r, std::vector{MeshAxis::pp});
      const int64_t peer =
          pipeline[static_cast<size_t>(rank.plan->request.pipeline->rank_of_stage[static_cast<size_t>(other)])];
      const Members ends = sends ? Members{r, peer} : Members{peer, r};
      Channel& channel = channels_[ends];
      // Both sides name a message by the stage that made it.
      const std::string message = fmt::format("{} of stage {}, microbatch {}", back ? "gradient" : "output",
                                              sends ? part.stage : other, part.microbatch);
      auto& own = sends ? channel.sent : channel.received;
      const auto& others = sends ? channel.received : channel.sent;
      own.push_back(message);
      if (own.size() <= others.size() && others[own.size() - 1] != message) {
        throw Difference(
            fmt::format("rank {}, {}: message {} from rank {} to rank {} is the {} for it, the {} for the other", r,
                        to_line(*rank.plan, action), own.size(), ends[0], ends[1], message, others[own.size() - 1]));
      }
      transfer.parts.push_back({&channel, sends, own.size()});
      if (sends) rank.sent = rank.transfers.size();
      if (!sends) rank.receiving[{back, part.stage, part.microbatch}] = rank.transfers.size();
    }
  }

  bool is_over(Rank& rank, const Action& action) const {
    if (action.kind == unshard || action.kind == reduce_scatter || action.kind == all_reduce) return true;
    if (action.kind == wait_unshard) return is_over(rank.gathers, action.group);
    if (action.kind == wait_reduce) return is_over(rank.reductions, action.group);
    if (action.kind == wait_forward || action.kind == wait_backward) {
      const auto found = rank.receiving.find({action.kind == wait_backward, action.stage, action.microbatch});
      return found != rank.receiving.end() && rank.completed >= found->second;
    }
    if (action.kind == wait_sends) return rank.completed >= rank.sent;
    return std::all_of(rank.now.begin(), rank.now.end(), [&](const Call& call) { return is_over(call); });
  }
  bool is_over(const std::map<int, Call>& under_way, int group) const {
    const auto found = under_way.find(group);
    return found == under_way.end() || is_over(found->second);
  }
  bool is_over(const Call& call) const {
    const Calls& calls = calls_.at(call.communicator);
    return std::all_of(call.communicator.second.begin(), call.communicator.second.end(), [&](int64_t member) {
      const auto found = calls.count.find(member);
      return found != calls.count.end() && found->second > call.number;
    });
  }

  Members members_of(int64_t r, std::string_view communicator) const {
    using enum MeshAxis;
    const PlanRequest& request = ranks_[static_cast<size_t>(r)].plan->request;
    auto group = [&](const std::vector<MeshAxis>& axes) { return request.place.mesh.group(r, axes); };
    if (communicator == group_names::kReplicate) return group({dp_replicate});
    if (communicator == group_names::kTensor) return group({tp});
    if (communicator == group_names::kLoss) return group({pp, dp_replicate, dp_shard, cp});
    if (communicator == group_names::kModel) return group({pp, dp_shard, cp, tp});
    if (communicator != group_names::kTied) return group({dp_shard, cp});
    const Members all = group({pp});
    const std::vector<int64_t>& owners = request.pipeline->rank_of_stage;
    return {all[static_cast<size_t>(owners.front())], all[static_cast<size_t>(owners.back())]};
  }

  std::vector<Rank> ranks_;
  std::map<std::pair<std::string_view, Members>, Calls> calls_;
  std::map<Members, Channel> channels_;  // by sender and receiver
};

}  // namespace

std::string mesh_problem(std::span<const RankPrograms> ranks) {
  try {
    return MeshWalk(ranks).run();
  } catch (const Difference& difference) {
    return difference.what();
  }
}

}  // namespace titan
