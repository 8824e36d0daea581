// The program of a step: the list of everything that one rank does, in order. `expand` writes it, a pure function of
// the plan; there is no decision left for the executor, which runs it (Executor::run). Whatever else wants to know
// about a step reads the same list: program_problem proves it, the plan counts its traffic and memory from it, and
// `titan_train plan --program` prints it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "titan/parallel/plan.h"

namespace titan {

/// What one program leaves behind and the next one starts from. Slots remember the weights that they hold, so the same
/// pass needs fewer gathers after a pass or a validation than after a step.
struct WeightState {
  std::vector<int> held;     // by weight slot: the group whose unsharded weights it holds, -1: none
  std::vector<bool> fresh;   // by group: its compute copies match the current masters
  std::vector<bool> scaled;  // and so are the float8 scales that it keeps
  std::vector<bool> open;    // its gradient has storage: microbatches of this step have added to it
  bool operator==(const WeightState&) const = default;
};

/// At the start of a run, and whenever masters were written from outside: no slot holds weights, and all copies are
/// stale.
WeightState stale_state(const Plan& plan);

/// A step is passes, the last of them another program, and the update. A pass is one microbatch forward and backward,
/// or those that go through a pipeline together.
enum class ProgramKind { pass, last_pass, update, evaluation };

struct Program {
  WeightState entry, exit;
  std::vector<Action> actions;
  ProgramKind kind = ProgramKind::pass;
};

/// `graphs`: the rank is alone and its weights stay, so forward and backward of a microbatch are marked as one graph.
Program expand(const Plan& plan, ProgramKind kind, const WeightState& entry, bool graphs = false);

/// The same for other stage actions than the plan's own: F, B, I, W, REDUCE_GRAD and transfers of local stages. Without
/// a pipeline there is stage 0, and with `is_last` each group is reduced right behind its last backward.
Program expand(const Plan& plan, std::span<const Action> table, const WeightState& entry, bool is_last);

struct RepeatedProgram {
  Program program;
  int64_t times = 1;
};

/// The programs of one whole step that begins with `entry`, in order.
std::vector<RepeatedProgram> step_programs(const Plan& plan, const WeightState& entry);

/// One line: "BACKWARD layers.3 microbatch 0", "UNSHARD layers.4 slot 1".
std::string to_line(const Plan& plan, const Action& action);

}  // namespace titan
