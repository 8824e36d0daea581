#include <fmt/format.h>

#include <algorithm>

#include "rank_machine.h"
#include "titan/plan/program.h"

namespace titan {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw BrokenRule(what);
}

/// What may not be left at the end of a program.
void require_end(const Plan& plan, const Program& program, const RankMachine& rank) {
  using enum Thing;
  const bool passes = program.kind == ProgramKind::pass || program.kind == ProgramKind::last_pass;
  const int64_t microbatches = passes ? plan.request.microbatches_per_pass() : 1;
  const int64_t runs = program.kind == ProgramKind::update ? 0 : microbatches * std::ssize(plan.units);
  const auto require_none = [&](std::initializer_list<Thing> things, const char* what) {
    for (const Thing thing : things) require(rank.count(thing) == 0, what);
  };
  require(rank.count(finished) == runs, "a unit has not run for every microbatch");
  require_none({input, output, output_gradient, input_gradient, receive},
               "hidden states or gradients between units are left over");
  require_none({send}, "a send was not waited for");
  require_none({saved, deferred}, "a backward is missing");
  require_none({weights}, "a RESHARD is missing");
  require(program.exit == rank.state(), "its exit state is not the state reached");
}

}  // namespace

std::string program_problem(const Plan& plan, std::span<const Program> programs, const RuleTable& rules) {
  if (programs.empty()) return {};
  RankMachine rank(plan, stale_state(plan), RankMachine::Tracks::everything, rules);
  for (size_t p = 0; p < programs.size(); ++p) {
    const Action* at = nullptr;
    try {
      require(programs[p].entry == rank.state(), "its entry state is not the state reached before it");
      rank.begin_program();
      for (const Action& action : programs[p].actions) {
        at = &action;
        rank.run(action);
      }
      at = nullptr;
      require_end(plan, programs[p], rank);
      if (p + 1 == programs.size()) require(rank.count(Thing::gradient) == 0, "the last step has not ended");
    } catch (const BrokenRule& problem) {
      const std::string where =
          at ? fmt::format("instruction {} ({})", at - programs[p].actions.data() + 1, to_line(plan, *at))
             : "as a whole";
      return fmt::format("program {}, {}: {}", p + 1, where, problem.what());
    }
  }
  return {};
}

std::string program_problem(const Plan& plan, std::span<const Program> programs) {
  return program_problem(plan, programs, action_rules());
}

std::vector<Program> checked_programs(const Plan& plan) {
  const int64_t passes = std::min<int64_t>(plan.request.accumulation / plan.request.microbatches_per_pass() - 1, 2);
  std::vector<Program> programs;
  auto add = [&](ProgramKind kind) {
    const WeightState entry = programs.empty() ? stale_state(plan) : programs.back().exit;
    programs.push_back(expand(plan, kind, entry));
  };
  auto add_step = [&] {
    for (int64_t pass = 0; pass < passes; ++pass) add(ProgramKind::pass);
    add(ProgramKind::last_pass);
    add(ProgramKind::update);
  };
  add(ProgramKind::evaluation);
  add_step();
  add_step();
  add(ProgramKind::evaluation);
  add(ProgramKind::evaluation);
  add_step();
  return programs;
}

}  // namespace titan
