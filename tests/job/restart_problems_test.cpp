#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/config_text.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

std::string problems_with(const std::vector<std::string>& words) {
  const std::vector<ConfigCheck> checks{restart_problems};
  return format_problems(load_config_text(Schema(), "", "job.toml", words, checks).problems);
}

TEST(RestartProblems, ARunThatSavesCheckpointsHasNone) {
  EXPECT_EQ(problems_with({"--checkpoint.enable"}), "");
  EXPECT_EQ(problems_with({"--checkpoint.enable", "--checkpoint.exclude_from_loading=lr_scheduler"}), "");
}

TEST(RestartProblems, WithoutCheckpointsARestartWouldLoseAllSteps) {
  EXPECT_NE(problems_with({}).find("a run without checkpoints loses all its steps when it is started again; set "
                                   "checkpoint.enable, or run it without restarts"),
            std::string::npos)
      << problems_with({});
  EXPECT_NE(problems_with({"--checkpoint.enable", "--checkpoint.load_only"}).find("--checkpoint.load_only"),
            std::string::npos);
}

TEST(RestartProblems, AStartThatAlwaysGoesBackWouldDoSoAtEveryRestart) {
  const std::vector<std::string> goes_back{"--checkpoint.enable", "--checkpoint.load_step=7"};
  EXPECT_NE(problems_with(goes_back).find("every restart would go back to that step"), std::string::npos);
  const std::vector<std::string> leaves_out{"--checkpoint.enable", "--checkpoint.exclude_from_loading=train_state"};
  EXPECT_NE(problems_with(leaves_out).find("every restart would leave these states out again"), std::string::npos);
}

}  // namespace
}  // namespace titan
