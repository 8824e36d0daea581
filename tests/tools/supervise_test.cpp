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

  /// What a run leaves in which `ranks` disagreed.
  void disagree(int64_t last_agreeing, const std::vector<int64_t>& ranks = {}, const std::string& host = "node7",
                double time = wall_time()) const {
    const RecordedDisagreement found{.step = last_agreeing + 3,
                                     .last_agreeing_step = last_agreeing,
                                     .ranks = ranks,
                                     .hosts = std::vector<std::string>(ranks.size(), host),
                                     .what = "rank 1 finds other bits",
                                     .checkpoint_folder = "checkpoint",
                                     .time = time};
    EXPECT_EQ(record_disagreement(folder_, found), "");
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

TEST_F(Supervised, ALockThatAPurgeRemovedIsTakenAgain) {
  commit(8);
  const Result result = launch(
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] || sleep 60; rm $0/supervisor.lock; exit 71");
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_EQ(count(result.errors, "titan_train launch: restart 1 of 10 from step 8"), 1) << result.errors;
  EXPECT_TRUE(fs::exists(folder_ / "supervisor.lock"));
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
  disagree(43);
  EXPECT_TRUE(judge(77).sentence.starts_with("restart 1 of 10 from step 40: ")) << judge(77).sentence;
  EXPECT_TRUE(judge(70).sentence.starts_with("restart 1 of 10 from step 40: ")) << "no run has gone back yet";
  EXPECT_EQ(settle_disagreement(folder_), "");
  EXPECT_TRUE(judge(70).sentence.starts_with("restart 1 of 10 from step 44: ")) << "one has";
  disagree(39);
  EXPECT_TRUE(judge(77).sentence.starts_with("restart 1 of 10 from step 0: ")) << "none is from before it";
  write_file_atomically(folder_ / "disagreement.json", "[]");
  EXPECT_TRUE(judge(77).sentence.starts_with("not started again, since no record says which of its checkpoints can be"))
      << judge(77).sentence;
}

TEST_F(Supervised, AfterADisagreementTheRankThatACheckNamedIsBlamedNotTheFirstToEnd) {
  const auto blamed = [&](const std::vector<int64_t>& ranks, double time) {
    disagree(43, ranks, "node7", time);
    note_failure(folder_, {.rank = 0, .host = "node3", .exit_code = 77, .text = "they differ", .time = wall_time()});
    AttemptEnd end;
    end.begin = wall_time() - 60;
    end.ranks.exit_code = 77;
    end.ranks.rank = 0;
    std::vector<EndedAttempt> earlier;
    judge_attempt(supervision_, end, earlier);
    return std::pair(earlier.back().rank, earlier.back().host);
  };
  using Blamed = std::pair<std::optional<int64_t>, std::string>;
  EXPECT_EQ(blamed({5}, wall_time()), Blamed(5, "node7"));
  EXPECT_EQ(blamed({1, 5}, wall_time()), Blamed(std::nullopt, "")) << "one of the two";
  EXPECT_EQ(blamed({5}, wall_time() - 120), Blamed(std::nullopt, "")) << "of an earlier attempt";
}

TEST_F(Supervised, TwoReplicasThatDifferMakeNoHostSuspect) {
  std::vector<EndedAttempt> earlier;
  for (int attempt = 0; attempt < 2; ++attempt) {
    disagree(43, {0, 2});
    AttemptEnd end;
    end.ranks.exit_code = 77;
    end.ranks.rank = 0;
    EXPECT_EQ(judge_attempt(supervision_, end, earlier).sentence.find("suspect"), std::string::npos);
  }
}

TEST_F(Supervised, FilesOfAnEarlierAttemptAreNotTakenForThisOnes) {
  note_failure(folder_, {.rank = 0, .host = "node7", .exit_code = 65, .text = "bad data", .time = wall_time() - 60});
  AttemptEnd end;
  end.begin = wall_time() - 1;
  end.ranks.exit_code = 74;
  std::vector<EndedAttempt> none;
  EXPECT_TRUE(judge_attempt(supervision_, end, none).restarts);
}

/// As `titan_train restart` decides, which knows of earlier attempts by the record alone.
class JobScript : public Supervised {
 protected:
  void SetUp() override {
    Supervised::SetUp();
    supervision_.counts_by_record = true;
    supervision_.has_outer_launcher = true;
  }

  RestartDecision decide(int exit_code, std::string* problem = nullptr) const {
    std::string said;
    std::vector<EndedAttempt> earlier = recorded_attempts(supervision_, said);
    if (problem) *problem = said;
    return judge(exit_code, earlier);
  }
};

TEST_F(JobScript, ARestartThatCannotBeRecordedIsNotGranted) {
  const fs::path record = folder_ / "attempts.jsonl";
  make_folders(record);
  const RestartDecision decision = decide(71);
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.exit_code, 71);
  EXPECT_TRUE(decision.sentence.starts_with("not started again, since this restart cannot be recorded in " +
                                            record.string() + ", and so not be counted: "))
      << decision.sentence;
  EXPECT_NE(decision.sentence.find("; the ranks ended with exit code 71"), std::string::npos) << decision.sentence;
  EXPECT_EQ(decide(65).exit_code, 65);
}

TEST_F(JobScript, TheFailedRanksOwnCodeDecidesWhateverTheLauncherMadeOfIt) {
  struct Row {
    int launchers, ranks;
    bool restarts;
    int exit_code;  // if there is no restart
  };
  for (const Row& row : {Row{137, 72, false, 72}, Row{1, 64, false, 64}, Row{143, 65, false, 65},
                         Row{130, 65, false, 65}, Row{143, 70, true, 0}, Row{130, 71, true, 0}, Row{74, 65, false, 65},
                         Row{137, 74, true, 0}, Row{65, 71, false, 65}}) {
    SCOPED_TRACE(std::to_string(row.launchers) + " for " + std::to_string(row.ranks));
    fs::remove(folder_ / "attempts.jsonl");
    note_failure(folder_, {.rank = 3, .host = "node7", .exit_code = row.ranks, .text = "why", .time = wall_time()});
    const RestartDecision decision = decide(row.launchers);
    EXPECT_EQ(decision.restarts, row.restarts) << decision.sentence;
    EXPECT_EQ(decision.exit_code, row.exit_code) << decision.sentence;
  }
}

TEST_F(JobScript, RanksThatTheLauncherEndedAreNoRequestToEnd) {
  for (const int code : {130, 143}) {
    const RestartDecision decision = decide(code);
    EXPECT_TRUE(decision.restarts) << decision.sentence;
    EXPECT_EQ(read_attempts(folder_).back().exit_code, 74);
  }
  supervision_.has_outer_launcher = false;
  EXPECT_FALSE(decide(143).restarts) << "launch passes on the signals that it gets";
}

TEST_F(JobScript, ADisagreementBehindAnotherCodeIsRecordedAsOne) {
  commit(40);
  disagree(40, {1});
  note_failure(folder_, {.rank = 1, .host = "node7", .exit_code = 77, .text = "other bits", .time = wall_time()});
  EXPECT_TRUE(decide(137).restarts);
  EXPECT_EQ(read_attempts(folder_).back().exit_code, 77);
  EXPECT_EQ(settle_disagreement(folder_), "");
  disagree(40, {1});
  note_failure(folder_, {.rank = 1, .host = "node7", .exit_code = 77, .text = "other bits", .time = wall_time()});
  const RestartDecision again = decide(137);
  EXPECT_FALSE(again.restarts) << again.sentence;
  EXPECT_NE(again.sentence.find("disagreed again"), std::string::npos) << again.sentence;
}

TEST_F(JobScript, TheTimeOfAFailureIsThatOfTheRank) {
  const double failed = wall_time() - 7;
  note_failure(folder_, {.rank = 3, .host = "n", .exit_code = 71, .text = "why", .time = failed});
  EXPECT_TRUE(decide(71).restarts);
  EXPECT_NEAR(read_attempts(folder_).back().failed, failed, 1e-3);
}

TEST_F(JobScript, AFolderThatCannotBeMadeIsSaidAndAMissingOneIsMade) {
  fs::remove_all(folder_);
  write_file_atomically(folder_, "a file");
  const RestartDecision decision = decide(71);
  EXPECT_FALSE(decision.restarts) << decision.sentence;
  EXPECT_EQ(decision.exit_code, 71);
  fs::remove(folder_);
  EXPECT_TRUE(decide(71).restarts) << "the run failed before it made its folder";
  EXPECT_EQ(read_attempts(folder_).size(), 1u);
}

TEST_F(JobScript, AFolderThatVanishedAsAWholeIsNotBegunAnew) {
  commit(8);
  EXPECT_TRUE(decide(71).restarts);
  supervision_.follows_restart = true;
  EXPECT_TRUE(decide(71).restarts);
  fs::remove_all(folder_);
  const RestartDecision decision = decide(71);
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.exit_code, static_cast<int>(ExitCode::storage));
  EXPECT_EQ(decision.sentence, "not started again: " + (folder_ / "attempts.jsonl").string() +
                                   " does not hold the attempts before this one; see whether its disk is mounted; the "
                                   "ranks ended with exit code 71");
  EXPECT_FALSE(fs::exists(folder_)) << "nothing is made where a disk may be missing";
}

TEST_F(JobScript, AnUnreadableLineIsSaidAndCountsAsAnAttemptWithoutAStep) {
  EXPECT_TRUE(decide(71).restarts);
  AppendFile(folder_ / "attempts.jsonl").append_line("{\"supervisor\": \"the te");
  std::string problem;
  EXPECT_TRUE(decide(71, &problem).restarts);
  EXPECT_EQ(problem, "warning: " + (folder_ / "attempts.jsonl").string() +
                         ":2: this line is no record of an attempt; counted as one that committed no step");
  AppendFile(folder_ / "attempts.jsonl").append_line("\xff");
  const RestartDecision decision = decide(71, &problem);
  EXPECT_FALSE(decision.restarts) << decision.sentence;
  EXPECT_NE(problem.find(":2,4: these lines are no record"), std::string::npos) << problem;
  EXPECT_NE(decision.sentence.find("4 restarts in a row committed no step"), std::string::npos) << decision.sentence;
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
