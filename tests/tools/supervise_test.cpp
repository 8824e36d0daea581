// Shell scripts as ranks, under the supervisor; titan_train itself is tested in tests/behaviour/supervised_test.py.
#include "titan/tools/supervise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

class Supervised : public testing::Test {
 protected:
  const fs::path folder_ = fs::path(testing::TempDir()) / "titan-supervise-test";
  Supervision supervision_{.folder = folder_,
                           .checkpoints = folder_ / "checkpoint",
                           .supervisor = "the test",
                           .restarts = 10,
                           .host = "here"};

  void SetUp() override {
    fs::remove_all(folder_);
    make_folders(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void commit(int64_t step) const {
    const fs::path checkpoint = folder_ / "checkpoint" / ("step-" + std::to_string(step));
    make_folders(checkpoint);
    write_file_atomically(checkpoint / "manifest.json", "{}");
  }

  struct Result {
    int code = 0;
    std::string errors;
  };

  /// `script` as every rank of every attempt; $0 is the folder, $TORCHELASTIC_RESTART_COUNT the attempt.
  Result launch(const std::string& script) const {
    LaunchRequest request;
    request.ranks = 2;
    request.program = "/bin/sh";
    request.arguments = {"-c", script, folder_.string()};
    request.output_folder = folder_ / "logs";
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Result result;
    result.code = launch_with_restarts(request, supervision_);
    testing::internal::GetCapturedStdout();
    result.errors = testing::internal::GetCapturedStderr();
    return result;
  }

  static int64_t count(const std::string& text, const std::string& words) {
    int64_t found = 0;
    for (size_t at = 0; (at = text.find(words, at)) != text.npos; at += words.size()) ++found;
    return found;
  }

  RestartDecision judge(int exit_code, std::vector<EndedAttempt> earlier = {}) const {
    AttemptEnd end;
    end.ranks.exit_code = exit_code;
    end.ranks.failed = end.ranks.ended = wall_time();
    return judge_attempt(supervision_, end, earlier);
  }
};

constexpr const char* kCommit =
    "mkdir -p $0/checkpoint/step-$TORCHELASTIC_RESTART_COUNT; "
    "echo '{}' > $0/checkpoint/step-$TORCHELASTIC_RESTART_COUNT/manifest.json; ";

TEST_F(Supervised, ARunThatFailsTwiceIsStartedTwiceMoreAndEndsWell) {
  const Result result = launch("[ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 70");
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_EQ(count(result.errors, "titan_train launch: restart "), 2) << result.errors;
  EXPECT_EQ(count(result.errors, "\n"), 2) << result.errors;
  EXPECT_NE(result.errors.find("restart 1 of 10 from step 0: rank 1 ended with exit code 70; lost 0 steps"),
            std::string::npos)
      << result.errors;
  EXPECT_NE(result.errors.find("host here failed 2 times in this run (ranks 1, 1): suspect"), std::string::npos);
  const std::vector<EndedAttempt> attempts = read_attempts(folder_);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_TRUE(attempts[1].restarts);
  EXPECT_EQ(attempts[1].rank, 1);
  EXPECT_LE(attempts[1].failed, attempts[1].ended);
}

TEST_F(Supervised, OnlyRanksOfARestartLearnThatTheyFollowAFailure) {
  EXPECT_EQ(launch("echo \"[$TITAN_RESTARTED]\" >> $0/told-$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 70").code,
            0);
  EXPECT_EQ(read_file(folder_ / "told-0"), "[]\n[1]\n");
}

TEST_F(Supervised, ThreeRestartsWithoutACommittedStepEndIt) {
  const Result result = launch("exit 71");
  EXPECT_EQ(result.code, 71);
  EXPECT_EQ(count(result.errors, "titan_train launch: restart "), 3) << result.errors;
  EXPECT_NE(result.errors.find("not started again, since 3 restarts in a row committed no step after step 0"),
            std::string::npos)
      << result.errors;
}

TEST_F(Supervised, WhatIsNotFiniteIsPrintedOnceAndRecordedWhole) {
  const Result result = launch("[ $RANK = 0 ] || exit 74; echo 'titan_train: step 2 is not finite' >&2; exit 72");
  EXPECT_EQ(result.code, 72);
  EXPECT_EQ(count(result.errors, "step 2 is not finite"), 1) << result.errors;
  EXPECT_TRUE(result.errors.ends_with("rank 0 ended with exit code 72 (its message is above)\n")) << result.errors;
  const std::vector<EndedAttempt> attempts = read_attempts(folder_);
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_EQ(attempts[0].why, "rank 0 ended with exit code 72: step 2 is not finite");
}

TEST_F(Supervised, CommittedStepsLetItGoOnUntilAllRestartsAreUsed) {
  supervision_.restarts = 5;
  const Result result = launch(std::string(kCommit) + "exit 71");
  EXPECT_EQ(result.code, 71);
  EXPECT_EQ(count(result.errors, "titan_train launch: restart "), 5) << result.errors;
  EXPECT_NE(result.errors.find("since 5 of 5 restarts are used"), std::string::npos) << result.errors;
}

TEST_F(Supervised, CheckpointsThatVanishEndItBeforeStepOneIsComputedAgain) {
  // One rank alone makes and removes them: the others wait for their end.
  const Result result = launch(
      "[ $RANK = 0 ] || exec sleep 1000; "
      "mkdir -p $0/checkpoint/step-5; echo '{}' > $0/checkpoint/step-5/manifest.json; "
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || rm -r $0/checkpoint; exit 71");
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::storage));
  EXPECT_EQ(count(result.errors, "titan_train launch: restart "), 1) << result.errors;
}

TEST_F(Supervised, AFolderThatIsRemovedAsAWholeIsNoticed) {
  commit(8);
  const Result result = launch("[ $TORCHELASTIC_RESTART_COUNT = 0 ] || rm -rf $0; exit 71");
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::storage)) << result.errors;
  EXPECT_NE(result.errors.find("held step 8, has none now"), std::string::npos) << result.errors;
}

TEST_F(Supervised, ASignalToTheSupervisorEndsAllWithoutARestart) {
  for (const char* signal : {"TERM", "INT", "USR1"}) {
    const Result result = launch(std::string("trap 'exit 71' TERM INT USR1; : > $0/$RANK; until [ -e $0/0 ] && [ -e "
                                             "$0/1 ]; do :; done; [ $RANK = 1 ] || kill -") +
                                 signal + " $PPID; while :; do sleep 0.01; done");
    EXPECT_EQ(result.code, 71);
    EXPECT_NE(result.errors.find("not started again, since a signal asked it to end"), std::string::npos)
        << signal << result.errors;
    for (const char* rank : {"0", "1"}) fs::remove(folder_ / rank);
  }
  EXPECT_EQ(count(read_file(folder_ / "attempts.jsonl"), "\n"), 3);
}

TEST_F(Supervised, RanksThatSavedAndEndedAreAnOrdinaryEnd) {
  const Result result = launch("exit 75");
  EXPECT_EQ(result.code, 75);
  EXPECT_EQ(result.errors, "titan_train launch: saved; run the same command to resume\n");
  EXPECT_FALSE(fs::exists(folder_ / "attempts.jsonl"));
}

TEST_F(Supervised, ASecondSupervisorIsRefused) {
  const LockFile lock(folder_ / "supervisor.lock", "somebody");
  try {
    launch("exit 0");
    FAIL() << "two supervisors";
  } catch (const Error& error) {
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(error.code(), ExitCode::launcher);
    EXPECT_EQ(std::string(error.what()), folder_.string() +
                                             " is supervised already, by somebody; end that one, or name another "
                                             "folder in job.dump_folder");
  }
}

TEST_F(Supervised, WhatTheAttemptLeftCompletesWhatTheSupervisorKnows) {
  commit(40);
  {
    ProgressFile progress(folder_, 20);
    progress.begin_save(40);
    progress.add_save(40);
    progress.add_step(44);
  }
  note_failure(folder_,
               {.rank = 5, .host = "node7", .exit_code = 71, .text = "rank 5: no memory", .time = wall_time()});
  const RestartDecision decision = judge(74);
  EXPECT_TRUE(decision.restarts);
  EXPECT_TRUE(decision.sentence.starts_with("restart 1 of 10 from step 40: rank 5: no memory; lost 4 steps and "))
      << decision.sentence;
  const std::vector<EndedAttempt> attempts = read_attempts(folder_);
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_EQ(attempts[0].exit_code, 71) << "srun's code is that of the ranks that lost a peer";
  EXPECT_EQ(attempts[0].host, "node7");
  EXPECT_EQ(attempts[0].rank, 5);
  EXPECT_EQ(attempts[0].began_at, 20);
  EXPECT_FALSE(read_progress(folder_)) << "the next attempt leaves its own";
  EXPECT_FALSE(read_failure(folder_));
}

TEST_F(Supervised, ACodeThatARestartCannotMendIsFoundBehindThatOfTheOthers) {
  note_failure(folder_, {.rank = 5, .host = "node7", .exit_code = 65, .text = "bad data", .time = wall_time()});
  const RestartDecision decision = judge(74);
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.exit_code, 65);
}

TEST_F(Supervised, AFullDiskIsKnownByTheSystemsWords) {
  const std::string words = "rank 0: cannot write x: No space left on device";
  note_failure(folder_, {.rank = 0, .host = "node7", .exit_code = 73, .text = words, .time = wall_time()});
  EXPECT_FALSE(judge(73).restarts);
  EXPECT_TRUE(judge(73).restarts) << "another problem of storage";
}

TEST_F(Supervised, AfterADisagreementTheNewestCheckpointBeforeItCounts) {
  commit(40);
  commit(44);
  write_file_atomically(folder_ / "disagreement.json", R"({"step": 46, "last_agreeing_step": 43})");
  EXPECT_TRUE(judge(77).sentence.starts_with("restart 1 of 10 from step 40: ")) << judge(77).sentence;
  EXPECT_TRUE(judge(70).sentence.starts_with("restart 1 of 10 from step 44: ")) << "that was another attempt";
  write_file_atomically(folder_ / "disagreement.json", R"({"step": 46, "last_agreeing_step": 39})");
  EXPECT_TRUE(judge(77).sentence.starts_with("restart 1 of 10 from step 0: ")) << "none is from before it";
  write_file_atomically(folder_ / "disagreement.json", "[]");
  EXPECT_TRUE(judge(77).sentence.starts_with("restart 1 of 10 from step 44: "));
}

TEST_F(Supervised, FilesOfAnEarlierAttemptAreNotTakenForThisOnes) {
  note_failure(folder_, {.rank = 0, .host = "node7", .exit_code = 65, .text = "bad data", .time = wall_time() - 60});
  AttemptEnd end;
  end.begin = wall_time() - 1;
  end.ranks.exit_code = 74;
  std::vector<EndedAttempt> none;
  EXPECT_TRUE(judge_attempt(supervision_, end, none).restarts);
}

TEST_F(Supervised, FilesThatHoldSomethingElseAreNoReasonToStop) {
  for (const char* name : {"progress.json", "failure.json", "attempts.jsonl"}) {
    for (const char* content : {"", "[]", "{\"rank\": {}}", "{\"step\": 1}\n\xff\n{"}) {
      write_file_atomically(folder_ / name, content);
      EXPECT_TRUE(judge(70).restarts) << name << content;
      fs::remove(folder_ / "attempts.jsonl");
    }
  }
}

}  // namespace
}  // namespace titan
