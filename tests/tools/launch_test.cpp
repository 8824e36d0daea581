// Shell scripts as ranks; titan_train itself under its launcher is tested in tests/behaviour.
#include "titan/tools/launch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "titan/base/filesystem.h"

namespace titan {
namespace {

class LaunchTest : public testing::Test {
 protected:
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "titan-launch-test";

  void SetUp() override {
    std::filesystem::remove_all(folder_);
    make_folders(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct Result {
    int code;
    std::string output;
    std::string errors;
  };

  /// Runs `script` as every rank; $0 is a folder of the test's own.
  Result launch(int64_t ranks, const std::string& script, std::set<int64_t> shown = {}, bool output_is_result = false) {
    LaunchRequest request;
    request.ranks = ranks;
    request.program = "/bin/sh";
    request.arguments = {"-c", script, folder_.string()};
    request.shown_ranks = std::move(shown);
    request.output_folder = folder_ / "logs";
    request.output_is_result = output_is_result;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Result result{};
    result.code = launch_ranks(request);
    result.output = testing::internal::GetCapturedStdout();
    result.errors = testing::internal::GetCapturedStderr();
    return result;
  }
};

TEST_F(LaunchTest, EveryRankIsToldWhoItIs) {
  const Result result = launch(2, "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.output.find("[rank0] 0 of 2, 0 of 2\n"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("[rank1] 1 of 2, 1 of 2\n"), std::string::npos) << result.output;
  EXPECT_EQ(result.errors, "");
}

TEST_F(LaunchTest, LinesAreMarkedAndEndedEvenWhenTheLastOneIsNot) {
  EXPECT_EQ(launch(1, "printf 'one\\ntwo'").output, "[rank0] one\n[rank0] two\n");
}

TEST_F(LaunchTest, OutputOfHiddenRanksGoesToFilesAndTheirErrorsAreShown) {
  const Result result = launch(2, "echo out $RANK; echo err $RANK >&2", {0});
  EXPECT_EQ(result.output, "[rank0] out 0\n");
  EXPECT_NE(result.errors.find("[rank1] err 1\n"), std::string::npos) << result.errors;
  EXPECT_EQ(read_file(folder_ / "logs" / "rank-0001.out"), "out 1\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs" / "rank-0000.out"));
}

TEST_F(LaunchTest, AResultIsRankZerosOutputUntouched) {
  const Result result = launch(2, "printf '{}\\n'; printf 'no line end'; echo err $RANK >&2", {0}, true);
  EXPECT_EQ(result.output, "{}\nno line end");
  EXPECT_NE(result.errors.find("[rank0] err 0\n"), std::string::npos) << result.errors;
  const std::string errors = launch(2, "echo alike >&2", {0}, true).errors;
  EXPECT_EQ(errors.substr(7), " alike\n") << errors;
}

TEST_F(LaunchTest, TheExitCodeIsTheFailingRanksAndItsFinalMessageComesLast) {
  const Result result = launch(3, "[ $RANK != 1 ] || { echo broken >&2; exit 71; }");
  EXPECT_EQ(result.code, 71);
  EXPECT_TRUE(result.errors.ends_with("titan_train launch: rank 1 ended with exit code 71: broken\n")) << result.errors;
}

TEST_F(LaunchTest, WhatRankZeroSaysOfTheFailedRankIsNotSaidTwice) {
  // Rank 0 reports what rank 1 left to it.
  const std::string script = "echo 'titan_train: rank 1 (node7, process 12) failed with exit code 71: broken' >&2; ";
  const Result result =
      launch(2, "[ $RANK = 1 ] || { " + script + ": > $0/told; exit 74; }; until [ -e $0/told ]; do :; done; exit 71");
  EXPECT_TRUE(result.errors.ends_with("titan_train launch: rank 1 ended with exit code 71: broken\n")) << result.errors;
  const Result another = launch(1, script + "exit 70");
  EXPECT_TRUE(
      another.errors.ends_with("titan_train launch: rank 0 ended with exit code 70: rank 1 (node7, process 12) "
                               "failed with exit code 71: broken\n"))
      << another.errors;
}

TEST_F(LaunchTest, TheLongMessageOfNumbersThatAreNotFiniteIsPrintedOnce) {
  EXPECT_EQ(launch(1, "echo 'titan_train: step 2 is not finite' >&2; exit 72").errors,
            "[rank0] titan_train: step 2 is not finite\n"
            "titan_train launch: rank 0 ended with exit code 72 (its message is above)\n");
  EXPECT_EQ(launch(1, "exit 72").errors, "titan_train launch: rank 0 ended with exit code 72\n");
}

TEST_F(LaunchTest, AResultsLogIsQuotedOnlyWhereItIsAnError) {
  const std::string log = "echo '[titan] 2026-01-02 03:04:05,678 - root - ",
                    end = "titan_train launch: rank 0 ended with ";
  const Result table = launch(1, log + "INFO - rank 0 on node1' >&2; exit 77", {}, true);
  EXPECT_TRUE(table.errors.ends_with(end + "exit code 77\n")) << table.errors;
  const Result error = launch(1, log + "ERROR - broken' >&2; exit 71", {}, true);
  EXPECT_NE(error.errors.find(end + "exit code 71: "), std::string::npos) << error.errors;
  EXPECT_TRUE(error.errors.ends_with("broken\n")) << error.errors;
}

TEST_F(LaunchTest, ARankThatOnlyLostAPeerIsNotTheCause) {
  const Result result =
      launch(2, "[ $RANK = 1 ] || { : > $0/done; exit 74; }; until [ -e $0/done ]; do :; done; exit 65");
  EXPECT_EQ(result.code, 65);
  EXPECT_EQ(launch(2, "exit 74").code, 74);
}

TEST_F(LaunchTest, RanksThatSavedAreNoFailure) {
  const Result result = launch(2, "echo a warning of a library >&2; exit 75");
  EXPECT_EQ(result.code, 75);
  EXPECT_TRUE(result.errors.ends_with("\ntitan_train launch: saved; run the same command to resume\n"))
      << result.errors;
}

TEST_F(LaunchTest, AKilledRankGivesItsSignalAsExitCodeAndEndsTheOthers) {
  const Result result = launch(2, "[ $RANK = 1 ] || kill -9 $$; exec sleep 1000");
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_TRUE(result.errors.starts_with("titan_train launch: rank 0 was killed by signal 9 (Killed); "))
      << result.errors;
}

TEST_F(LaunchTest, ARankThatHadToBeKilledIsNotTheCauseOfWhatCameBefore) {
  const Result result = launch(2, "[ $RANK = 1 ] || { echo silence >&2; exit 74; }; trap '' TERM; exec sleep 1000");
  EXPECT_EQ(result.code, 74);
  EXPECT_TRUE(result.errors.ends_with("titan_train launch: rank 0 ended with exit code 74: silence\n"))
      << result.errors;
}

TEST_F(LaunchTest, AWarningIsNotTakenForTheCause) {
  const Result result =
      launch(2,
             "[ $RANK = 1 ] || { echo broken >&2; : > $0/told; exit 74; }; until [ -e $0/told ]; do :; done; "
             "echo warning: slow >&2; exit 71");
  EXPECT_EQ(result.code, 71);
  EXPECT_TRUE(result.errors.ends_with("titan_train launch: rank 1 ended with exit code 71: broken\n")) << result.errors;
}

TEST_F(LaunchTest, WhatRanksSayWhenTheyAreAskedToEndIsNotTakenForTheCause) {
  const Result result =
      launch(2, "[ $RANK = 1 ] || exit 5; trap 'echo asked >&2; exit 9' TERM; while :; do sleep 0.01; done");
  EXPECT_EQ(result.code, 5);
  EXPECT_NE(result.errors.find("[rank1] asked\n"), std::string::npos) << result.errors;
  EXPECT_TRUE(result.errors.ends_with("titan_train launch: rank 0 ended with exit code 5\n")) << result.errors;
}

TEST_F(LaunchTest, AFileThatCannotBeWrittenCostsTheLinesOfHiddenRanksAndOneWarning) {
  make_folders(folder_ / "logs");
  std::filesystem::create_symlink("/dev/full", folder_ / "logs" / "rank-0001.out");
  const Result result = launch(2, "echo one; echo two", {0});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, "[rank0] one\n[rank0] two\n");
  EXPECT_TRUE(result.errors.starts_with("titan_train launch: what rank 1 and other ranks")) << result.errors;
  EXPECT_NE(result.errors.find("rank-0001.out: it is a symbolic link"), std::string::npos) << result.errors;
  EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
}

TEST_F(LaunchTest, ARankThatDoesNotWantToEndIsMadeTo) {
  const Result result = launch(2, "[ $RANK = 1 ] || exit 5; trap '' TERM; while :; do sleep 1000; done");
  EXPECT_EQ(result.code, 5);
}

TEST_F(LaunchTest, SignalsOfTheUserReachEveryRank) {
  // Rank 0 sends what a user would, once both ranks are ready for it.
  const std::string script =
      "trap 'echo told; exit 9' TERM USR1 USR2; : > $0/$RANK; until [ -e $0/0 ] && [ -e $0/1 ]; do :; done; "
      "[ $RANK = 1 ] || kill -$SIGNAL $PPID; while :; do sleep 0.01; done";
  for (const char* signal : {"TERM", "USR1", "USR2"}) {
    for (const char* ready : {"0", "1"}) std::filesystem::remove(folder_ / ready);
    ::setenv("SIGNAL", signal, /*overwrite=*/1);
    const Result result = launch(2, script);
    EXPECT_EQ(result.code, 9);
    EXPECT_NE(result.output.find("[rank0] told\n"), std::string::npos) << signal << result.output;
    EXPECT_NE(result.output.find("[rank1] told\n"), std::string::npos) << signal << result.output;
  }
  ::unsetenv("SIGNAL");
}

TEST_F(LaunchTest, AProgramThatIsNotThereEndsWithTheShellsCodeForThat) {
  LaunchRequest request;
  request.ranks = 2;
  request.program = folder_ / "nothing";
  request.output_folder = folder_;
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch_ranks(request), 127);
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace titan
