#include "titan/base/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace titan {
namespace {

/// Seconds until the process would end itself after these signals.
unsigned seconds_left_after(std::initializer_list<int> signals) {
  const StopSignals stop;
  for (int signal : signals) std::raise(signal);
  EXPECT_EQ(StopSignals::received(), *signals.begin());
  return ::alarm(0);
}

// alarm() rounds what is left to whole seconds.
TEST(StopSignals, ctrl_c_is_obeyed_within_five_seconds) {
  const unsigned left = seconds_left_after({SIGINT});
  EXPECT_GE(left, 1u);
  EXPECT_LE(left, 5u);
}

TEST(StopSignals, a_termination_request_leaves_a_step_most_of_the_thirty_seconds_until_a_scheduler_kills) {
  const unsigned left = seconds_left_after({SIGTERM});
  EXPECT_GE(left, 20u);
  EXPECT_LT(left, 30u);
}

TEST(StopSignals, a_further_termination_request_does_not_move_the_limit_of_the_first_signal) {
  EXPECT_LE(seconds_left_after({SIGINT, SIGTERM}), 5u);
}

TEST(StopSignals, ctrl_c_after_another_signal_ends_the_process_at_once) {
  for (int first : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          const StopSignals stop;
          std::raise(first);
          std::raise(SIGINT);
        },
        testing::ExitedWithCode(130), "^$");
  }
}

TEST(StopSignals, a_handler_runs_on_a_stack_of_its_own) {
  const StopSignals stop;
  stack_t now{};
  ASSERT_EQ(::sigaltstack(nullptr, &now), 0);
  EXPECT_EQ(now.ss_flags & SS_DISABLE, 0);
  for (int signal : {SIGINT, SIGTERM, SIGALRM}) {
    struct sigaction action {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0) << signal;
  }
}

TEST(StopSignals, when_it_goes_no_wish_and_no_limit_are_left_behind) {
  {
    const StopSignals stop;
    std::raise(SIGTERM);
  }
  EXPECT_EQ(StopSignals::received(), 0);
  EXPECT_EQ(::alarm(0), 0u);
}

}  // namespace
}  // namespace titan
