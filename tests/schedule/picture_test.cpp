#include "titan/schedule/picture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "shapes.h"
#include "support/checkout.h"
#include "support/occurrences.h"
#include "titan/base/filesystem.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

/// Columns of a line: letters, and the two glyphs beyond ASCII, which take three and two bytes.
size_t columns(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

ScheduleRun shown(std::string_view name, int ranks, int stages, int microbatches, ActionTimes times = {}) {
  return run_of(generated(name, ranks, stages, microbatches), std::move(times));
}

TEST(ScheduleGrid, ShowsRanksAgainstTimeWithTheTablesWords) {
  EXPECT_EQ(schedule_grid(shown("1F1B", 2, 1, 2)),
            "time   0              5\n"
            "rank 0 F0 F1 ······B0─── ···B1───\n"
            "rank 1 ···F0 B0─── F1 B1─── ······\n");
}

TEST(ScheduleGrid, NamesTheStageWhereARankHasSeveral) {
  const std::string grid = schedule_grid(shown("ZBVZeroBubble", 2, 2, 3));
  EXPECT_NE(grid.find("rank 0 0F0 0F1 0F2 3F0 3I0 3W0 3F1"), std::string::npos) << grid;
}

TEST(ScheduleGrid, IsWhatTheDocumentationShowsOfEverySchedule) {
  const std::string page = read_file(checkout() / "docs/schedules.md");
  for (const ScheduleFamily& family : schedule_families()) {
    const bool long_pattern = family.placement == Placement::v;
    const ScheduleTable table = generate(family, {4, family.least_stages_per_rank, long_pattern ? 8 : 4});
    const std::vector<std::string> lines = split(schedule_grid(run_of(split_overlapped(table), {})), '\n');
    for (size_t i = 0; i <= 4; ++i) {
      EXPECT_NE(page.find("\n    " + lines[i] + "\n"), std::string::npos) << family.name << ": " << lines[i];
    }
  }
}

TEST(ScheduleGrid, NeverExceedsTheWidthAndLosesNoAction) {
  for (const int width : {40, 61, 80, 100, 200}) {
    for (const ScheduleFamily& family : schedule_families()) {
      const ScheduleRun run =
          run_of(generate(family, {4, family.least_stages_per_rank, 8}), ActionTimes{{1, 1.3, 0.8}, {}, 0, 0, 0});
      const std::string grid = schedule_grid(run, {width, false});
      for (const std::string& line : split(grid, '\n')) {
        EXPECT_LE(columns(line), static_cast<size_t>(width)) << family.name << "\n" << grid;
      }
      EXPECT_EQ(grid.find('\x1b'), std::string::npos);
    }
  }
}

TEST(ScheduleGrid, AScheduleThatIsTooLongForItsLabelsStillIsDrawnInAFewBands) {
  const std::string grid = schedule_grid(shown("1F1B", 4, 1, 2000), {80, false});
  EXPECT_LT(std::count(grid.begin(), grid.end(), '\n'), 60);
}

TEST(ScheduleGrid, ColoursEndWithTheirBoxes) {
  const std::string grid = schedule_grid(shown("1F1B", 2, 1, 2), {80, true});
  for (const std::string& line : split(grid, '\n')) {
    const size_t last = line.rfind("\x1b[");
    if (last != std::string::npos) {
      EXPECT_EQ(line.substr(last, 4), "\x1b[0m") << line;
    }
  }
}

TEST(ScheduleLoads, HaveALineForEveryRank) {
  EXPECT_EQ(schedule_loads(shown("1F1B", 2, 1, 2)),
            "rank        busy      idle   idle %  activations  deferred W  stages\n"
            "0              6         3     33.3            2           0  0\n"
            "1              6         3     33.3            1           0  1\n");
}

TEST(ScheduleSvg, HasABoxForEveryActionAndIsWellFormed) {
  const ScheduleRun run = shown("DualPipeV", 4, 2, 8);
  const std::string svg = schedule_svg(run, {"a < b & c", "second line"});
  size_t boxes = 0;
  for (const std::vector<Action>& actions : run.table) {
    for (const Action& action : actions) boxes += leaves(action).size();
  }
  EXPECT_EQ(occurrences(svg, "<title>"), boxes);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_EQ(occurrences(svg, "<text"), occurrences(svg, "</text>"));
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(ScheduleSvg, StaysWithinAWidthThatCanBeLookedAt) {
  for (const int microbatches : {1, 8, 1000}) {
    const std::string svg = schedule_svg(shown("GPipe", 4, 1, microbatches), {"x"});
    const int width = std::stoi(svg.substr(svg.find("width=\"") + 7));
    EXPECT_GE(width, 400);
    EXPECT_LE(width, 2700);
  }
}

}  // namespace
}  // namespace titan
