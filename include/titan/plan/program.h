// The program of a step: the list of all instructions of one rank, in order. `expand` builds it, a pure function of the
// plan; the executor (executor.h) runs it and decides nothing. The same list is counted for traffic and memory, printed
// by `titan_train plan --program`, and checked before a run starts: by each rank alone (program_problem), and in jobs
// of up to 64 ranks by rank 0 for all of them (mesh_problem).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/plan/plan.h"

namespace titan {

/// The state after one program, from which the next one starts. Slots keep the weights that they hold, so the same pass
/// needs fewer gathers after a pass or a validation than after a step.
struct WeightState {
  std::vector<int> held;     // by weight slot: the group whose unsharded weights it holds, -1: none
  std::vector<bool> fresh;   // by group: its compute copies match the current masters
  std::vector<bool> scaled;  // by group: its float8 scales match them, too
  std::vector<bool> open;    // by group: its gradient has storage, to which microbatches of this step have been added
  bool operator==(const WeightState&) const = default;
};

/// The state at the start of a run, and after masters were written from outside: no slot holds weights, and all copies
/// are stale.
WeightState stale_state(const Plan& plan);
/// The state in which every step but the first begins. Frozen weights are fresh, and gathered if nothing else needs
/// their slot.
WeightState settled_state(const Plan& plan);

/// A step is several passes, the last with its own program, and the update. A pass is one microbatch forward and
/// backward, or those that pass through a pipeline together.
enum class ProgramKind { pass, last_pass, update, evaluation };

struct Program {
  WeightState entry, exit;
  std::vector<Action> actions;
  ProgramKind kind = ProgramKind::pass;
};

Program expand(const Plan& plan, ProgramKind kind, const WeightState& entry);

/// The same for other stage actions than the plan's: F, B, I, W, REDUCE_GRAD and transfers of local stages. Without a
/// pipeline there is stage 0, and with `is_last` each group is reduced right after its last backward.
Program expand(const Plan& plan, std::span<const Action> table, const WeightState& entry, bool is_last);

struct RepeatedProgram {
  Program program;
  int64_t times = 1;
};

/// The programs of one whole step that begins with `entry`, in order.
std::vector<RepeatedProgram> step_programs(const Plan& plan, const WeightState& entry);

/// One line: "BACKWARD layers.3 microbatch 0", "UNSHARD layers.4 slot 1".
std::string to_line(const Plan& plan, const Action& action);

/// Calls of one communicator. Bytes are those of whole tensors (docs/distributed.md).
struct Exchange {
  std::string_view communicator;  // of communicator_names
  Collective kind;
  Traffic traffic;
  int64_t received = 0;  // bytes, of a permute whose ranks do not receive as much as they send
};

/// The communicator calls of an instruction, in order. Excludes communication within units (tensor and context
/// parallel); includes communicators of one rank.
std::vector<Exchange> exchanges_of(const Plan& plan, const Action& action);

/// Members of the communicator of that name (communicator_names) on the plan's rank, ascending, and their number.
std::vector<int64_t> members_of(const Plan& plan, std::string_view communicator);
int64_t ranks_of(const Plan& plan, std::string_view communicator);

/// What each weight group sends in a step, in the plan's order.
std::vector<std::vector<Exchange>> weight_exchanges(const Plan& plan);

/// "tp Shard(0), fsdp StridedShard(0)": the axes of more than one rank over which a tensor is sharded or replicated.
/// Strided: sharded within the shards of an earlier axis of the same dimension. "whole" on a single rank.
std::string layout_words(const TensorLayout& layout);

/// Checks one rank's programs, which run in this order from `programs[0].entry` on and end with a step. Returns the
/// first problem, with program, position (from 1) and instruction; empty: none.
std::string program_problem(const Plan& plan, std::span<const Program> programs);

/// A rank's programs, ordered such that each starts from every state that occurs in a run: after the start, a pass, a
/// step and a validation.
std::vector<Program> checked_programs(const Plan& plan);

/// The programs that one rank of a mesh runs.
struct RankPrograms {
  const Plan* plan = nullptr;  // its place defines the rank
  std::span<const Program> programs;
};

/// Checks the programs of all ranks of a mesh, given in rank order. Returns the first collective or message in which
/// two ranks differ, or, in a deadlock, what each rank waits for; empty if there is no problem. Every collective is
/// assumed to block until all members have called it.
std::string mesh_problem(std::span<const RankPrograms> ranks);

}  // namespace titan
