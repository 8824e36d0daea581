#include "titan/report/attempt_record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "titan/base/filesystem.h"
#include "titan/base/process.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

class AttemptRecord : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("titan-attempt-" + std::to_string(::getpid()));
};

EndedAttempt example() {
  EndedAttempt attempt;
  attempt.supervisor = "job 7";
  attempt.failed = 1764412345.125;
  attempt.ended = 1764412346.5;
  attempt.exit_code = 137;
  attempt.rank = 3;
  attempt.host = "node7";
  attempt.why = "rank 3 was killed by signal 9";
  attempt.began_at = 20;
  attempt.reached = 44;
  attempt.saved_step = 40;
  attempt.committed = 40;
  attempt.lost_seconds = 7.5;
  attempt.restarts = true;
  attempt.sentence = "restart 1 of 10";
  return attempt;
}

TEST_F(AttemptRecord, ProgressSaysHowFarTheAttemptGot) {
  EXPECT_FALSE(read_progress(folder_));
  const double before = wall_time();
  ProgressFile file(folder_, 20);
  std::optional<AttemptProgress> read = read_progress(folder_);
  ASSERT_TRUE(read);
  EXPECT_GE(read->began, before);
  EXPECT_EQ(*read, (AttemptProgress{.began_at = 20, .began = read->began, .step = 20}));
  file.add_step(1'000'000'000'000);
  EXPECT_EQ(read_progress(folder_)->step, 1'000'000'000'000);
  file.add_step(21);
  EXPECT_EQ(read_progress(folder_)->step, 21) << "a shorter line leaves nothing of a longer one";
  file.begin_save(21);
  const double begun = wall_time();
  file.add_step(25);
  file.begin_save(25);
  file.add_save(21);
  read = read_progress(folder_);
  EXPECT_EQ(read->saved_step, 21);
  EXPECT_LE(read->saved, begun);
  EXPECT_EQ(read->step, 25);
}

TEST_F(AttemptRecord, AnObstacleInThePlaceOfAFileCostsThatFileAlone) {
  fs::create_directories(folder_ / "progress.json");
  fs::create_symlink("/dev/full", folder_ / "failure.json");
  ProgressFile file(folder_, 0);
  file.add_step(1);
  note_failure(folder_, {});
  EXPECT_FALSE(read_progress(folder_));
  EXPECT_FALSE(read_failure(folder_));
  forget_attempt(folder_);
  EXPECT_TRUE(fs::exists(folder_ / "progress.json"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "failure.json"));
}

TEST_F(AttemptRecord, TheFirstFailureIsTheOneThatIsKept) {
  const FailedRank first{.rank = 3, .host = "node7", .exit_code = 71, .text = "no memory", .time = 12.5};
  note_failure(folder_, first);
  note_failure(folder_, {.rank = 0, .host = "node1", .exit_code = 0, .text = "rank 3 ended", .time = 13});
  EXPECT_EQ(read_failure(folder_), first);
  forget_attempt(folder_);
  EXPECT_FALSE(read_failure(folder_));
}

TEST_F(AttemptRecord, EndedAttemptsAreLinesThatAreReadAsTheyWereWritten) {
  EndedAttempt other;
  other.supervisor = "job 8";
  EXPECT_EQ(append_attempt(folder_, example()), "");
  std::ofstream(folder_ / "attempts.jsonl", std::ios::app) << "not a line of this program\n";
  EXPECT_EQ(append_attempt(folder_, other), "");
  EXPECT_EQ(read_attempts(folder_), (std::vector<EndedAttempt>{example(), other}));
}

TEST_F(AttemptRecord, LostStepsAreThoseAfterWhatIsResumed) {
  EXPECT_EQ(example().lost_steps(), 4);
  EndedAttempt attempt = example();
  attempt.committed.reset();
  EXPECT_EQ(attempt.lost_steps(), 44);
  attempt.committed = 44;
  attempt.reached = 0;
  EXPECT_EQ(attempt.lost_steps(), 0) << "it failed before it began to train";
}

TEST_F(AttemptRecord, ARestartIsALineOfMetricsWithItsCauseItsCostAndItsParts) {
  RestartReport report{.step = 39, .failed = example()};
  report.times = {.ending = 0.5, .start = 1, .rendezvous = 0.25, .build = 0.75, .load = 0.125, .first_step = 0.375};
  report.restarts = 2;
  EXPECT_EQ(report.lost_steps(), 6) << "step 40 was damaged, and 38 loaded";
  EXPECT_EQ(json_line(report),
            R"({"step":39,"event":"restart","why":"rank 3 was killed by signal 9","exit_code":137,)"
            R"("restarts":2,"from_step":38,"lost_steps":6,"lost_seconds":7.5,"down_seconds":3.0,"parts":{"ending":0.5,)"
            R"("start":1.0,"rendezvous":0.25,"build":0.75,"load":0.125,"first_step":0.375},"rank":3,"host":"node7"})");
  EXPECT_EQ(restart_words(report),
            "restart: step 39 was done 3.00 s after the failure: ending 0.50, start 1.00, rendezvous 0.25, build 0.75, "
            "load 0.12, first step 0.38");
}

RecordedDisagreement disagreement() {
  return {.step = 46,
          .last_agreeing_step = 43,
          .ranks = {0, 2},
          .hosts = {"node3", "node7"},
          .what = "they differ",
          .checkpoint_folder = "checkpoint",
          .time = 1764412345.125};
}

TEST_F(AttemptRecord, ADisagreementLimitsTheCheckpointsOfItsRunAlone) {
  EXPECT_FALSE(last_agreeing_step(folder_, folder_ / "checkpoint"));
  EXPECT_EQ(record_disagreement(folder_, disagreement()), "");
  EXPECT_EQ(read_disagreement(folder_), disagreement());
  EXPECT_EQ(last_agreeing_step(folder_, folder_ / "checkpoint"), 43);
  EXPECT_FALSE(last_agreeing_step(folder_, folder_ / "others"));
  RecordedDisagreement of_a_run_that_saves_nothing = disagreement();
  of_a_run_that_saves_nothing.checkpoint_folder = "";
  EXPECT_EQ(record_disagreement(folder_, of_a_run_that_saves_nothing), "");
  EXPECT_FALSE(last_agreeing_step(folder_, folder_ / "checkpoint"));
  EXPECT_FALSE(last_agreeing_step(folder_, folder_ / ""));
  RecordedDisagreement spelled_otherwise = disagreement();
  spelled_otherwise.checkpoint_folder = "./checkpoint/";
  EXPECT_EQ(record_disagreement(folder_, spelled_otherwise), "");
  EXPECT_EQ(last_agreeing_step(folder_, folder_ / "checkpoint"), 43);
}

TEST_F(AttemptRecord, ADisagreementThatCannotBeReadIsAnError) {
  EXPECT_EQ(record_disagreement(folder_, disagreement()), "");
  const std::string right = read_file(folder_ / kDisagreementFile);
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string changed = right;
    return changed.replace(changed.find(part), part.size(), other);
  };
  for (const std::string& content :
       {std::string(), std::string("[]"), std::string("{\"last_agreeing_step\": 3}"), std::string("\xff"),
        right.substr(0, right.size() / 2), right + right, with(":43", ":-5"), with(":43", ":1e300"), with(":43", ":47"),
        with(":43", ":2.9"), with(":43", ":\"43\""), with("\"node3\",", "")}) {
    write_file_atomically(folder_ / kDisagreementFile, content);
    EXPECT_THROW(
        {
          try {
            last_agreeing_step(folder_, folder_ / "checkpoint");
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::storage);
            EXPECT_NE(std::string(error.what()).find("remove it to trust them all"), std::string::npos);
            throw;
          }
        },
        Error)
        << content;
  }
  fs::remove(folder_ / kDisagreementFile);
  fs::create_directory(folder_ / kDisagreementFile);
  EXPECT_THROW(read_disagreement(folder_), Error);
}

TEST_F(AttemptRecord, ADisagreementThatIsSettledStaysUnderAnotherName) {
  EXPECT_EQ(settle_disagreement(folder_), "") << "there is none";
  for (const char* name : {"disagreement-1.json", "disagreement-2.json"}) {
    EXPECT_EQ(record_disagreement(folder_, disagreement()), "");
    EXPECT_EQ(settle_disagreement(folder_), "");
    EXPECT_FALSE(read_disagreement(folder_));
    EXPECT_TRUE(fs::is_regular_file(folder_ / name)) << name;
  }
}

}  // namespace
}  // namespace titan
