// A wrong entry in the table of rules is noticed: by the proofs of programs, which then refuse those of some layout, or
// by the checks and simulations of schedule tables, which then say something else.
#include "titan/schedule/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "proved_rows.h"
#include "src/plan/rank_machine.h"
#include "src/schedule/other_rules.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// The opposite of an effect; none for the next step of a gradient, which can only be left out.
std::optional<Does> inverse(Does does) {
  switch (does) {
    case Does::needs:
      return Does::lacks;
    case Does::lacks:
      return Does::needs;
    case Does::acquires:
    case Does::replaces:
      return Does::releases;
    case Does::ensures:
      return Does::drops;
    case Does::releases:
      return Does::acquires;
    case Does::drops:
      return Does::ensures;
    case Does::posts:
      return Does::waits;
    case Does::waits:
      return Does::posts;
    default:
      return std::nullopt;
  }
}

struct WrongEntry {
  ActionKind kind;
  bool before;
  size_t effect;
  std::string text() const {
    return fmt::format("{}, effect {} {} its work", word_of(kind), effect + 1, before ? "before" : "after");
  }
  RuleTable rules() const {
    RuleTable table = action_rules();
    Rule& rule = table[static_cast<size_t>(kind)];
    std::vector<Effect>& effects = before ? rule.before : rule.after;
    const auto place = effects.begin() + static_cast<std::ptrdiff_t>(effect);
    const std::optional<Does> wrong = inverse(place->does);
    wrong ? void(place->does = *wrong) : void(effects.erase(place));
    return table;
  }
};

std::vector<WrongEntry> wrong_entries() {
  std::vector<WrongEntry> all;
  for (size_t kind = 0; kind < kActionKinds; ++kind) {
    const Rule& rule = action_rules()[kind];
    for (size_t i = 0; i < rule.before.size(); ++i) all.push_back({static_cast<ActionKind>(kind), true, i});
    for (size_t i = 0; i < rule.after.size(); ++i) all.push_back({static_cast<ActionKind>(kind), false, i});
  }
  return all;
}

/// All that is said of lowered tables, whole and with an action left out or two neighbours swapped.
std::vector<std::string> said_of_tables(const RuleTable& rules) {
  std::vector<std::string> said;
  const auto look = [&](const ScheduleTable& table) {
    said.push_back(join(table_problems(table, {}, rules), "\n"));
    if (!table_problems(table).empty()) return;
    try {
      const Simulation run = simulate(table, {.transfer = 0.5, .gather = 0.25, .reduce = 0.75}, rules);
      said.back() += fmt::format("time {}", run.time);
      for (const RankLoad& load : run.ranks) said.back() += fmt::format(" {} {}", load.peak_live, load.peak_deferred);
    } catch (const InvariantError& error) {
      said.back() += error.what();
    }
  };
  for (const char* name : {"1F1B", "ZBVZeroBubble"}) {
    const ScheduleFamily& family = *find_schedule(name);
    const ScheduleTable whole = lower(generate(family, {2, family.least_stages_per_rank, 2}));
    look(whole);
    for (size_t i = 0; i < whole[0].size(); ++i) {
      ScheduleTable broken = whole;
      broken[0].erase(broken[0].begin() + static_cast<std::ptrdiff_t>(i));
      look(broken);
      if (i + 1 == whole[0].size()) continue;
      broken = whole;
      std::swap(broken[0][i], broken[0][i + 1]);
      look(broken);
    }
  }
  return said;
}

TEST(Rules, EveryWrongEntryIsNoticed) {
  std::vector<RowRanks> meshes;
  for (const LayoutRow& row : proved_rows()) {
    ASSERT_FALSE(meshes.emplace_back(row).refuses_by(action_rules())) << row.name();
  }
  const std::vector<std::string> said = said_of_tables(action_rules());
  std::set<ActionKind> kinds;
  for (const WrongEntry& entry : wrong_entries()) {
    const RuleTable wrong = entry.rules();
    const bool is_noticed =
        said_of_tables(wrong) != said ||
        std::any_of(meshes.begin(), meshes.end(), [&](const RowRanks& mesh) { return mesh.refuses_by(wrong); });
    EXPECT_TRUE(is_noticed) << entry.text();
    kinds.insert(entry.kind);
  }
  const std::set<ActionKind> merged{ActionKind::overlap, ActionKind::batch, ActionKind::graph};
  EXPECT_EQ(kinds.size() + merged.size(), kActionKinds) << "every kind but those that have only parts";
}

}  // namespace
}  // namespace titan
