#include "titan/cli/schedule_command.h"

#include <gtest/gtest.h>

#include <sstream>

#include "run.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "train/job.h"

namespace titan {
namespace {

std::string schedule(const std::vector<std::string>& words) {
  std::ostringstream out;
  run_schedule_command(words, {}, out);
  return out.str();
}

const std::vector<std::string> kSmall{"--name", "zbvzerobubble", "--ranks", "4", "--microbatches", "8"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ScheduleCommand, ShowsGridBubbleClosedFormAndTheLoadOfEveryRank) {
  const std::string shown = schedule(kSmall);
  for (const char* part :
       {"ZBVZeroBubble: 4 ranks, 2 stages each, 8 microbatches\n", "times: F 1, I 1, W 1, B 2, message 0\n",
        "time 51: bubble 5.88 % simulated; 5.88 % by the closed form, (p-1)F = 3 idle on each rank\n", "rank 0 0F0 0F1",
        "rank        busy      idle", "0             48         3      5.9            8           1  0, 7\n"}) {
    EXPECT_TRUE(holds(shown, part));
  }
}

TEST(ScheduleCommand, TimesAndMessagesChangeWhatIsSimulated) {
  const std::string shown = schedule({"--name=1F1B", "--ranks=2", "--microbatches=2", "--times=2,3,1,0.5"});
  EXPECT_TRUE(holds(shown, "times: F 2, I 3, W 1, B 4, message 0.5\n"));
  EXPECT_TRUE(holds(shown, "time 19: bubble "));  // 3 forwards and 3 backwards in a row, and two messages
  EXPECT_TRUE(holds(shown, "by the closed form (messages free)"));
}

TEST(ScheduleCommand, WhatItWritesItReadsBackAndShowsTheSame) {
  const TestFolder folder;
  for (const std::vector<std::string>& form : {std::vector<std::string>{}, {"--lowered"}}) {
    const std::string file = folder / "a.csv";
    const std::string written = schedule(with(with(kSmall, {"--csv", file}), form));
    EXPECT_TRUE(holds(written, "wrote " + file));
    const std::string read = schedule({"--from", file});
    EXPECT_TRUE(holds(read, "4 ranks, 8 stages, 8 microbatches\n"));
    const size_t grid = written.find("\n\n");
    EXPECT_EQ(read.substr(read.find("\n\n")), written.substr(grid, written.find("wrote ") - grid));
  }
}

TEST(ScheduleCommand, DrawsAPicture) {
  const TestFolder folder;
  EXPECT_TRUE(holds(schedule(with(kSmall, {"--svg", folder / "a.svg"})), "wrote "));
  EXPECT_TRUE(holds(read_file(folder / "a.svg"), "<svg "));
}

TEST(ScheduleCommand, IsFoundByTheProgramWithItsHelp) {
  EXPECT_EQ(run(with({"schedule"}, kSmall)).code, 0);
  const Outcome help = run({"schedule", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const std::string& word : schedule_command_words()) EXPECT_TRUE(holds(help.output, word));
  EXPECT_TRUE(holds(run({"help"}).output, "schedule "));
}

TEST(ScheduleCommand, WhatIsWrongIsASentenceAndExit64) {
  const TestFolder folder;
  const std::string broken = folder.write("broken.csv", "0F0,0B0\n1F0,1X0\n");
  const std::string stuck = folder.write("stuck.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  const std::string hollow = folder.write("hollow.csv", "0F0,0B0\n\n1F0,1B0\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "--name is missing (titan_train schedule --help)\n  --ranks is missing"},
      {{"--name", "GPip", "--times", "1,x,1", "--lowered"},
       "schedule: --times: \"x\" is no time of an action; use numbers above 0 and up to 1e6\n  --lowered is "
       "about the file that --csv names\n  --ranks is missing (titan_train schedule --help)\n  "
       "--microbatches is missing (titan_train schedule --help)\n  there is no schedule \"GPip\"; did you mean "
       "GPipe?"},
      {{"--name", "PipelineScheduleMulti", "--ranks", "2", "--microbatches", "2"}, "name the file with --from"},
      {with(kSmall, {"--csv", folder / "x", "--svg", folder / "x"}), "--csv and --svg name the same file"},
      {{"--from", hollow}, hollow + ": row 2 is empty, so rank 1 would do nothing"},
      {{"--name", "GPipe", "--ranks", "2"}, "--microbatches is missing"},
      {{"--name", "GPip", "--ranks", "2", "--microbatches", "2"}, "did you mean GPipe?"},
      {{"--name", "x", "--ranks", "2", "--microbatches", "2"}, "there are GPipe, 1F1B"},
      {{"--name", "1F1B", "--ranks", "4", "--microbatches", "2", "--stages-per-rank", "2"},
       "schedule: 1F1B runs 1 stage per rank, and 2 are asked for; the nearest legal number is 1 (4 in all)\n  1F1B "
       "needs at least as many microbatches as ranks"},
      {{"--name", "GPipe", "--ranks", "two", "--microbatches", "2"}, "two"},
      {{"--name", "GPipe", "--ranks", "2", "--microbatches", "2", "--times", "1,2"}, "--times: 1,2 is not F,I,W"},
      {{"--name", "GPipe", "--ranks", "2", "--microbatches", "2", "--times", "1,0,1"}, "\"0\" is no time of an action"},
      {{"--name", "GPipe", "--ranks", "800", "--microbatches", "8000"}, "too long to show"},
      {{"--from", broken}, broken + ": row 2, cell 2: \"1X0\" is no action"},
      {{"--from", stuck}, stuck + ": deadlock: rank 0, action 2 (0B0) waits for ever"},
      {{"--from", broken, "--ranks", "2"}, "excludes"},
      {{"--from", folder / "none.csv"}, "cannot read"},
      {with(kSmall, {"--what"}), "titan_train schedule --help"},
  };
  for (const auto& [words, part] : cases) {
    const Outcome outcome = run(with({"schedule"}, words));
    EXPECT_EQ(outcome.code, 64) << join(words, " ");
    EXPECT_TRUE(holds(outcome.errors, part)) << join(words, " ");
  }
}

}  // namespace
}  // namespace titan
