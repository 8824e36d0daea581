// The programs of every row of the layout matrices pass the checkers, for each rank and for all together. Mutations (an
// instruction deleted, two neighbours swapped) fail, unless they are harmless.
#include <map>
#include <set>

#include "proved_rows.h"

namespace titan {
namespace {

class Programs : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(Programs, AreProvedForEveryRankAndTogether) {
  const RowRanks mesh(GetParam());
  for (size_t r = 0; r < mesh.plans.size(); ++r) {
    EXPECT_EQ(program_problem(mesh.plans[r], mesh.programs[r]), "") << "rank " << r;
  }
  EXPECT_EQ(mesh.problem_with(mesh.programs[0]), "");
}

/// What an instruction does to what. Sums may be added up in any order, but for their rounding.
enum class Access { reads, adds, changes };
using Touched = std::map<std::string, Access>;

/// What one instruction touches.
class TouchedThings {
 public:
  TouchedThings(const Plan& plan, const Action& action) : plan_(plan), action_(action) {
    for (const Action& part : leaves(action)) part.unit >= 0 ? add_unit(part) : add_stage(part);
    for (const Exchange& exchange : exchanges_of(plan, action)) {
      changes("calls of " + std::string(exchange.communicator));
    }
    add_of_groups();
    add_of_step();
  }
  const Touched& all() const { return all_; }

 private:
  void changes(const std::string& what, int number = 0, int other = 0) {
    all_[fmt::format("{} {} {}", what, number, other)] = Access::changes;
  }
  void adds(const std::string& what, int number = 0) {
    all_.try_emplace(fmt::format("{} {} 0", what, number), Access::adds);
  }
  void reads(const std::string& what, int number = 0) {
    all_.try_emplace(fmt::format("{} {} 0", what, number), Access::reads);
  }
  template <typename Act>
  void each_group(const Act& act) {
    for (int g = 0; g < std::ssize(plan_.groups); ++g) {
      if (action_.group < 0 || action_.group == g) act(g);
    }
  }
  template <typename Act>
  void each_trained_group(const Act& act) {
    each_group([&](int g) {
      if (plan_.groups[static_cast<size_t>(g)].is_trained()) act(g);
    });
  }

  void add_unit(const Action& part);
  void add_stage(const Action& part);
  void add_of_groups();
  void add_of_step();

  const Plan& plan_;
  const Action& action_;
  Touched all_;
};

void TouchedThings::add_unit(const Action& part) {
  using enum ActionKind;
  const UnitPlan& unit = plan_.units[static_cast<size_t>(part.unit)];
  const auto is_trained = [&](size_t g) { return plan_.groups[g].is_trained(); };
  const bool writes_gradients = part.kind == backward || (part.kind == forward && unit.gradients_in_forward);
  changes("kept by", part.unit, part.microbatch);
  const bool computes = part.kind == forward || part.kind == backward || part.kind == evaluate;
  if (!computes) return;
  changes(part.kind == backward ? "gradient stream" : "stream", part.stage, part.microbatch);
  if (part.kind == forward && unit.role == UnitRole::head) adds("loss");
  for (const size_t g : unit.groups) {
    if (part.kind != backward || unit.weights_in_backward) reads("weights", static_cast<int>(g));
    if (writes_gradients && is_trained(g)) adds("gradient", static_cast<int>(g));
  }
}

void TouchedThings::add_stage(const Action& part) {
  using enum ActionKind;
  if (part.stage < 0) return;
  const bool back = part.kind == send_backward || part.kind == receive_backward || part.kind == wait_backward ||
                    part.kind == handoff_backward;
  const char* stream = back ? "gradient stream" : "stream";
  changes(stream, part.stage, part.microbatch);
  if (part.kind == handoff_forward || part.kind == handoff_backward) {
    changes(stream, part.stage + (back ? -1 : 1), part.microbatch);
  }
  if (is_transfer(part.kind)) changes("messages");
  if (part.kind == weight_gradient) {
    for (const UnitPlan& unit : plan_.units) {
      if (unit.stage != part.stage) continue;
      for (const size_t g : unit.groups) adds("gradient", static_cast<int>(g));
    }
  }
}

void TouchedThings::add_of_groups() {
  using enum ActionKind;
  switch (action_.kind) {
    case refresh:
    case scale:
    case unshard:
    case wait_unshard:
    case reshard:
      each_group([&](int g) {
        changes("weights", g);
        reads("masters", g);
      });
      if (action_.slot >= 0) changes("weight slot", action_.slot);
      break;
    case open_gradient:
    case close_gradient:
    case reduce_scatter:
    case all_reduce:
    case wait_reduce:
    case reduce_partial:
    case add_tied:
    case to_host:
    case wait_host:
    case zero_gradient:
      each_trained_group([&](int g) {
        const WeightGroupPlan& group = plan_.groups[static_cast<size_t>(g)];
        changes("gradient", g);
        if (group.gathers) changes("gradient slot", static_cast<int>(group.gradient_slot));
        const bool reduces =
            action_.kind == reduce_scatter || action_.kind == all_reduce || action_.kind == wait_reduce;
        if (reduces && group.narrows_gradient()) changes("message slot", static_cast<int>(group.message_slot));
      });
      if (action_.kind == wait_host) changes("control");
      break;
    default:
      break;
  }
}

void TouchedThings::add_of_step() {
  using enum ActionKind;
  switch (action_.kind) {
    case wait_sends:
      changes("messages");
      break;
    case loss_sum:
      changes("loss");
      break;
    case squares:
      each_trained_group([&](int g) { reads("gradient", g); });
      changes("squares");
      break;
    case norm:
      changes("squares");
      break;
    case control:
      reads("loss");
      reads("squares");
      changes("control");
      break;
    case collect:
    case transform:
    case wait_transform:
      each_trained_group([&](int g) { changes("gradient", g); });
      reads("control");
      break;
    case before_change:
      each_trained_group([&](int g) { reads("masters", g); });
      break;
    case step:
      reads("control");
      each_trained_group([&](int g) {
        changes("masters", g);
        changes("weights", g);
        changes("gradient", g);
      });
      break;
    default:
      break;
  }
}

Touched touched_by(const Plan& plan, const Action& action) { return TouchedThings(plan, action).all(); }

/// What two instructions both touch and at least one changes; empty: their order matters only for what overlaps.
std::string shared_by(const Plan& plan, const Action& a, const Action& b) {
  const Touched first = touched_by(plan, a), second = touched_by(plan, b);
  for (const auto& [what, access] : first) {
    const auto found = second.find(what);
    if (found == second.end()) continue;
    if (access == Access::changes || access != found->second || found->second == Access::changes) return what;
  }
  return {};
}

TEST_P(Programs, AreNotProvedWithoutAnInstructionOrWithTwoInEachOthersPlaceUnlessThatIsHarmless) {
  const RowRanks mesh(GetParam());
  const Plan& plan = mesh.plans[0];
  std::vector<Program> changed = mesh.programs[0];
  int64_t deleted = 0, swapped = 0, harmless = 0;
  for (size_t p = 0; p < changed.size(); ++p) {
    Program& program = changed[p];
    const auto same = [&](const Program& other) { return other.kind == program.kind && other.entry == program.entry; };
    if (std::any_of(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(p), same)) continue;
    const std::vector<Action> whole = program.actions;
    for (size_t i = 0; i < whole.size(); ++i) {
      program.actions.erase(program.actions.begin() + static_cast<std::ptrdiff_t>(i));
      ++deleted;
      EXPECT_NE(mesh.problem_with(changed), "") << "without instruction " << i + 1 << ", " << to_line(plan, whole[i]);
      program.actions = whole;
      if (i + 1 == whole.size() || whole[i] == whole[i + 1]) continue;
      std::swap(program.actions[i], program.actions[i + 1]);
      ++swapped;
      if (mesh.problem_with(changed).empty()) {
        ++harmless;
        EXPECT_EQ(shared_by(plan, whole[i], whole[i + 1]), "")
            << i + 1 << ", " << to_line(plan, whole[i]) << " behind " << to_line(plan, whole[i + 1]);
      }
      program.actions = whole;
    }
  }
  if (swapped > 0) {
    EXPECT_LT(harmless, swapped);
  }
  RecordProperty("mutations", fmt::format("{} deleted, {} swapped, {} of them harmless", deleted, swapped, harmless));
}

TEST(ProgramsOfStages, GatherWeightsWhileAUnitRunsOrAMessageIsAwaitedButForTheFirst) {
  LayoutRow row;
  row.pipeline = row.shard = row.stages_per_rank = 2;
  row.schedule = "Interleaved1F1B";
  row.reshard = "always";
  const Plan plan = plan_of(row, 0);
  const Program program = expand(plan, ProgramKind::last_pass, stale_state(plan));
  std::set<int> started;  // since the last unit or message
  int64_t gathers = 0, exposed = 0;
  for (const Action& action : program.actions) {
    const bool overlaps =
        action.unit >= 0 || action.kind == ActionKind::wait_forward || action.kind == ActionKind::wait_backward;
    if (overlaps) started.clear();
    if (action.kind == ActionKind::unshard) ++gathers, started.insert(action.group);
    if (action.kind == ActionKind::wait_unshard) exposed += started.count(action.group);
  }
  EXPECT_GT(gathers, 2) << "of both stages";
  EXPECT_EQ(exposed, 1);
}

INSTANTIATE_TEST_SUITE_P(Matrix, Programs, ::testing::ValuesIn(proved_rows()), [](const auto& info) {
  std::string name = info.param.name();
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  return name + (info.param.step_in_backward ? "_step" : "");
});

}  // namespace
}  // namespace titan
