// Whether the programs of all ranks of a mesh match: every collective is called by all members, every message received.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "titan/plan/program.h"

namespace titan {
namespace {

using enum ActionKind;

struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Simulates the instructions of all ranks. Each rank runs its own in order and waits for the others where it must.
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

  /// What each rank that does not finish waits for; empty: all ranks finish.
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
      stuck += fmt::format("{}rank {}, instruction {} ({}) waits for {}", stuck.empty() ? "deadlock: " : "; ", r,
                           rank.next + 1, to_line(*rank.plan, *rank.actions[rank.next]),
                           awaited(rank, *rank.actions[rank.next]));
    }
    return stuck;
  }

 private:
  using Members = std::vector<int64_t>;
  /// The calls of one communicator, each as first made by any member.
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
  /// One call. NCCL runs the calls of a rank on one stream: each starts when the previous one has completed, and
  /// completes when the peers of all its messages have started.
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
    bool posted = false;                      // the next instruction has made its calls
    std::vector<Call> now;                    // calls of the next instruction
    std::map<int, Call> gathers, reductions;  // not waited for yet, by group
    std::vector<Transfer> transfers;
    size_t completed = 0;                      // number of completed transfers
    bool started = false;                      // the next transfer has started
    std::map<StageMessage, size_t> receiving;  // number of the transfer that receives it
    size_t sent = 0;                           // transfers up to the last one that sends
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
    if (!awaited(rank, action).empty()) return moved;
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
      const std::pair communicator{exchange.communicator, members_of(*rank.plan, exchange.communicator)};
      Calls& calls = calls_[communicator];
      const size_t number = calls.count[r]++;
      std::string call = fmt::format("{} of {} bytes", name(exchange.kind), exchange.traffic.bytes);
      if (action.group >= 0) {
        call += " for " + rank.plan->groups[static_cast<size_t>(action.group)].parameters[0].spec.name;
      }
      if (number == calls.made.size()) calls.made.push_back(call);
      if (calls.made[number] != call) {
        throw Difference(fmt::format("rank {}, {}: call {} of {} is {} here and {} on another member", r,
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
      const StageMessage carried = carried_by(part);
      const bool sends = is_send(part.kind);
      const Members ends{rank_of_stage(rank, carried.stage), rank_of_stage(rank, carried.receiver())};
      Channel& channel = channels_[ends];
      const std::string message = fmt::format("{} of stage {}, microbatch {}", carried.backward ? "gradient" : "output",
                                              carried.stage, carried.microbatch);
      auto& own = sends ? channel.sent : channel.received;
      const auto& others = sends ? channel.received : channel.sent;
      own.push_back(message);
      if (own.size() <= others.size() && others[own.size() - 1] != message) {
        throw Difference(
            fmt::format("rank {}, {}: message {} from rank {} to rank {} is the {} here and the {} on the other rank",
                        r, to_line(*rank.plan, action), own.size(), ends[0], ends[1], message, others[own.size() - 1]));
      }
      transfer.parts.push_back({&channel, sends, own.size()});
      if (sends) rank.sent = rank.transfers.size();
      if (!sends) rank.receiving[carried] = rank.transfers.size();
    }
  }

  static int64_t rank_of_stage(const Rank& rank, int stage) {
    const PlanRequest& request = rank.plan->request;
    const Members pipeline = members_of(*rank.plan, group_names::kPipeline);
    return pipeline[static_cast<size_t>(request.pipeline->rank_of_stage[static_cast<size_t>(stage)])];
  }

  /// What the instruction waits for; empty: it need not wait.
  std::string awaited(const Rank& rank, const Action& action) const {
    const auto of_group = [&](const std::map<int, Call>& calls) {
      const auto found = calls.find(action.group);
      return found == calls.end() ? std::string() : awaited(found->second);
    };
    const auto of_transfers = [&](bool done) { return done ? std::string() : std::string("its message"); };
    switch (action.kind) {
      case unshard:
      case reduce_scatter:
      case all_reduce:
        return {};
      case wait_unshard:
        return of_group(rank.gathers);
      case wait_reduce:
        return of_group(rank.reductions);
      case wait_forward:
      case wait_backward: {
        const auto found = rank.receiving.find(carried_by(action));
        return of_transfers(found != rank.receiving.end() && rank.completed >= found->second);
      }
      case wait_sends:
        return of_transfers(rank.completed >= rank.sent);
      default:
        for (const Call& call : rank.now) {
          if (std::string missing = awaited(call); !missing.empty()) return missing;
        }
        return {};
    }
  }
  std::string awaited(const Call& call) const {
    const Calls& calls = calls_.at(call.communicator);
    for (const int64_t member : call.communicator.second) {
      const auto found = calls.count.find(member);
      if (found != calls.count.end() && found->second > call.number) continue;
      return fmt::format("call {} of {} on rank {}", call.number + 1, call.communicator.first, member);
    }
    return {};
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
