// The decision as a table: what happened, and what is done and said.
#include "titan/tools/restart.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

namespace titan {
namespace {

constexpr int kKilled = 128 + SIGKILL;

/// An attempt that ended with `exit_code` when `committed` was the newest step in the folder; none: none was there.
EndedAttempt ended(int exit_code, std::optional<int64_t> committed, int64_t reached = 0) {
  EndedAttempt attempt;
  attempt.supervisor = "this one";
  attempt.exit_code = exit_code;
  attempt.committed = committed;
  attempt.reached = reached;
  attempt.why = "rank 1 failed";
  return attempt;
}

EndedAttempt on(const std::string& host, int64_t rank, EndedAttempt attempt) {
  attempt.host = host;
  attempt.rank = rank;
  return attempt;
}

EndedAttempt of_another(EndedAttempt attempt) {
  attempt.supervisor = "another one";
  return attempt;
}

EndedAttempt asked(EndedAttempt attempt) {
  attempt.was_asked = true;
  return attempt;
}

EndedAttempt full_disk(EndedAttempt attempt) {
  attempt.disk_is_full = true;
  return attempt;
}

EndedAttempt from(int64_t step, EndedAttempt attempt) {
  attempt.began_at = step;
  return attempt;
}

EndedAttempt saved(int64_t step, EndedAttempt attempt) {
  attempt.saved_step = step;
  return attempt;
}

EndedAttempt holding(int64_t step, EndedAttempt attempt) {
  attempt.held = step;
  return attempt;
}

EndedAttempt without_record(EndedAttempt attempt) {
  attempt.trust_is_unknown = true;
  return attempt;
}

struct Row {
  const char* name;
  std::vector<EndedAttempt> earlier;
  EndedAttempt last;
  bool restarts;
  int exit_code;
  std::string says;
  int64_t limit = 10;
};

const std::optional<int64_t> kNone;

class RestartTable : public testing::TestWithParam<Row> {};

TEST_P(RestartTable, DecidesAndSaysWhy) {
  const Row& row = GetParam();
  SCOPED_TRACE(row.name);
  const RestartDecision decision = decide_restart(row.limit, row.earlier, row.last);
  EXPECT_EQ(decision.restarts, row.restarts);
  EXPECT_EQ(decision.exit_code, row.restarts ? 0 : row.exit_code);
  EXPECT_EQ(decision.sentence, row.says);
}

INSTANTIATE_TEST_SUITE_P(
    Ends, RestartTable,
    testing::Values(Row{"finished", {}, ended(0, 40), false, 0, ""}, Row{"saved", {}, ended(75, 40), false, 75, ""},
                    Row{"interrupted", {}, ended(130, 40), false, 130, ""},
                    Row{"asked, and killed in the end",
                        {},
                        asked(ended(kKilled, 40)),
                        false,
                        kKilled,
                        "not started again, since a signal asked it to end; rank 1 failed"},
                    Row{"a rank got SIGTERM before it handled signals",
                        {},
                        ended(128 + SIGTERM, 40),
                        false,
                        143,
                        "not started again, since a signal asked it to end; rank 1 failed"},
                    Row{"a rank got SIGUSR1 before it handled signals",
                        {},
                        ended(128 + SIGUSR1, 40),
                        false,
                        138,
                        "not started again, since a signal asked it to end; rank 1 failed"},
                    Row{"ranks disagreed, and it is not known since when",
                        {},
                        without_record(ended(77, 40)),
                        false,
                        77,
                        "not started again, since no record says which of its checkpoints can be trusted; rank 1 "
                        "failed"},
                    Row{"killed",
                        {},
                        ended(kKilled, 40, 43),
                        true,
                        0,
                        "restart 1 of 10 from step 40: rank 1 failed; lost 3 steps and 0.0 s of training"},
                    Row{"killed before the first checkpoint",
                        {},
                        ended(kKilled, kNone, 1),
                        true,
                        0,
                        "restart 1 of 10 from step 0: rank 1 failed; lost 1 step and 0.0 s of training"},
                    Row{"a hang",
                        {},
                        ended(76, 40, 40),
                        true,
                        0,
                        "restart 1 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"a bug, out of memory, a lost peer",
                        {ended(70, 40), ended(71, 42)},
                        ended(74, 44, 44),
                        true,
                        0,
                        "restart 3 of 10 from step 44: rank 1 failed; lost 0 steps and 0.0 s of training"}));

INSTANTIATE_TEST_SUITE_P(
    Unmendable, RestartTable,
    testing::Values(Row{"config",
                        {},
                        ended(64, 40),
                        false,
                        64,
                        "not started again, since the same config would be refused again; rank 1 failed"},
                    Row{"data",
                        {ended(kKilled, 40)},
                        ended(65, 50),
                        false,
                        65,
                        "not started again, since the same data would be refused again; rank 1 failed"},
                    Row{"not finite",
                        {},
                        ended(72, 40),
                        false,
                        72,
                        "not started again, since the same steps usually give the same numbers again; rank 1 failed"},
                    Row{"a full disk",
                        {},
                        full_disk(ended(73, 40)),
                        false,
                        73,
                        "not started again, since the disk is full: make room; rank 1 failed"},
                    Row{"a disk that answers badly",
                        {},
                        ended(73, 40),
                        true,
                        0,
                        "restart 1 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"no program",
                        {},
                        ended(127, 40),
                        false,
                        127,
                        "not started again, since the program cannot be started; rank 1 failed"},
                    Row{"ranks that have never met",
                        {},
                        ended(69, kNone),
                        false,
                        69,
                        "not started again, since its first start failed: correct what is said here; rank 1 failed"},
                    Row{"after a disagreement that left no checkpoint",
                        {saved(6, ended(77, 0, 7))},
                        ended(kKilled, kNone, 2),
                        true,
                        0,
                        "restart 2 of 10 from step 0: rank 1 failed; lost 2 steps and 0.0 s of training"},
                    Row{"a host that is not back yet",
                        {ended(kKilled, 40)},
                        ended(69, 40),
                        true,
                        0,
                        "restart 2 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"}));

INSTANTIATE_TEST_SUITE_P(
    Progress, RestartTable,
    testing::Values(Row{"two restarts without a step",
                        {ended(kKilled, 40), ended(kKilled, 40)},
                        ended(kKilled, 40),
                        true,
                        0,
                        "restart 3 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"three",
                        {ended(kKilled, 40), ended(kKilled, 40), ended(71, 40)},
                        ended(70, 40),
                        false,
                        70,
                        "not started again, since 3 restarts in a row committed no step after step 40; rank 1 failed"},
                    Row{"three without any step at all",
                        {ended(70, kNone), ended(70, kNone), ended(70, kNone)},
                        ended(70, kNone),
                        false,
                        70,
                        "not started again, since 3 restarts in a row committed no step after step 0; rank 1 failed"},
                    Row{"a step between",
                        {ended(70, 40), ended(70, 40), ended(70, 40), ended(70, 42), ended(70, 42)},
                        ended(70, 42),
                        true,
                        0,
                        "restart 6 of 10 from step 42: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"a damaged checkpoint that is saved again is no new step",
                        {ended(70, 40), ended(70, 38), ended(70, 40)},
                        ended(70, 40),
                        false,
                        70,
                        "not started again, since 3 restarts in a row committed no step after step 40; rank 1 failed"},
                    Row{"those of another supervisor do not count",
                        {of_another(ended(70, 40)), of_another(ended(70, 40)), of_another(ended(70, 40))},
                        ended(70, 40),
                        true,
                        0,
                        "restart 1 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"all that are allowed",
                        {ended(70, 40), ended(70, 42)},
                        ended(70, 44),
                        false,
                        70,
                        "not started again, since 2 of 2 restarts are used; rank 1 failed",
                        2}));

INSTANTIATE_TEST_SUITE_P(
    Disagreements, RestartTable,
    testing::Values(
        Row{"the first",
            {},
            ended(77, 40, 44),
            true,
            0,
            "restart 1 of 10 from step 40: rank 1 failed; lost 4 steps and 0.0 s of training"},
        Row{"again at once",
            {ended(77, 40)},
            ended(77, 40, 44),
            false,
            77,
            "not started again, since the same steps, computed again from step 40, disagreed again; rank 1 failed"},
        Row{"again after another failure without a new step",
            {ended(77, 40), ended(kKilled, 40)},
            ended(77, 40),
            false,
            77,
            "not started again, since the same steps, computed again from step 40, disagreed again; rank 1 failed"},
        Row{"another one, later",
            {ended(77, 40), ended(kKilled, 60)},
            ended(77, 60),
            true,
            0,
            "restart 3 of 10 from step 60: rank 1 failed; lost 0 steps and 0.0 s of training"}));

INSTANTIATE_TEST_SUITE_P(
    Vanished, RestartTable,
    testing::Values(
        Row{"checkpoints that earlier attempts had",
            {ended(kKilled, 40)},
            ended(kKilled, kNone),
            false,
            73,
            "not started again: the folder of its checkpoints, which held step 40, has none now; see whether its disk "
            "is mounted; rank 1 failed"},
        Row{"what it saved itself",
            {},
            saved(30, ended(74, kNone)),
            false,
            73,
            "not started again: the folder of its checkpoints, which held step 30, has none now; see whether its disk "
            "is mounted; rank 1 failed"},
        Row{"the checkpoint that was there when it was started",
            {},
            holding(20, ended(kKilled, kNone)),
            false,
            73,
            "not started again: the folder of its checkpoints, which held step 20, has none now; see whether its disk "
            "is mounted; rank 1 failed"},
        Row{"the checkpoint that it began with",
            {},
            from(20, ended(74, kNone)),
            false,
            73,
            "not started again: the folder of its checkpoints, which held step 20, has none now; see whether its disk "
            "is mounted; rank 1 failed"}));

INSTANTIATE_TEST_SUITE_P(
    Suspects, RestartTable,
    testing::Values(Row{"one failure",
                        {},
                        on("node7", 3, ended(kKilled, 40)),
                        true,
                        0,
                        "restart 1 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"},
                    Row{"two of one host, whoever supervised them",
                        {of_another(on("node7", 3, ended(kKilled, 20))), on("node8", 9, ended(kKilled, 30))},
                        on("node7", 5, ended(76, 40)),
                        true,
                        0,
                        "restart 2 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training; host node7 "
                        "failed 2 times "
                        "in this run (ranks 3, 5): suspect"},
                    Row{"a full disk, a wrong config and a request are no host's fault",
                        {on("node7", 3, full_disk(ended(73, 20))), on("node7", 3, ended(64, 20)),
                         on("node7", 3, asked(ended(kKilled, 20))), on("node7", 3, ended(69, 20))},
                        on("node7", 3, ended(kKilled, 40)),
                        true,
                        0,
                        "restart 5 of 10 from step 40: rank 1 failed; lost 0 steps and 0.0 s of training"}));

TEST(LostSeconds, AreCountedFromTheSaveThatIsResumedElseFromTheBegin) {
  const AttemptProgress progress{.began_at = 20, .began = 100, .step = 45, .saved_step = 40, .saved = 130};
  EXPECT_EQ(lost_seconds(progress, 40, 137.5), 7.5);
  EXPECT_EQ(lost_seconds(progress, 20, 137.5), 37.5) << "the newer checkpoint is damaged";
  EXPECT_EQ(lost_seconds(progress, 40, 120), 0) << "clocks of two hosts differ";
}

}  // namespace
}  // namespace titan
