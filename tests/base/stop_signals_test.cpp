#include "titan/base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "support/signals.h"

namespace titan {
namespace {

using std::chrono::steady_clock;

/// Sends itself these, one after the other, and never comes to a place where it would stop by itself.
void end_after(std::initializer_list<int> signals) {
  const StopSignals stop;
  for (const int signal : signals) {
    ::kill(::getpid(), signal);
    await_stop_signal();
  }
  for (;;) ::pause();
}

TEST(StopSignals, TheFirstOneIsRemembered) {
  const StopSignals stop;
  EXPECT_EQ(StopSignals::received(), 0);
  ::kill(::getpid(), SIGTERM);
  await_stop_signal();
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(StopSignals::received(), SIGTERM);
}

TEST(StopSignals, CtrlCIsObeyedWithinItsLimitWhateverElseArrivesAndWhateverTheProcessDoes) {
  const auto begin = steady_clock::now();
  EXPECT_EXIT(end_after({SIGINT, SIGTERM}), testing::ExitedWithCode(130),
              "^titan_train: stopped by a signal; the work under way was dropped\n$");
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(20)) << "a step gets 25 s after SIGTERM";
}

TEST(StopSignals, CtrlCAfterAnotherSignalEndsTheProcessAtOnceWithoutAWord) {
  for (const int first : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(end_after({first, SIGINT}), testing::ExitedWithCode(130), "^$");
  }
}

TEST(StopSignals, OneThatWasSentIsKnownOfAtOnceWhetherItWasTakenOrNot) {
  const StopSignals stop;
  EXPECT_FALSE(StopSignals::was_sent());
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(StopSignals::was_sent());
  await_stop_signal();
  EXPECT_TRUE(StopSignals::was_sent());
}

TEST(StopSignals, TheyAreBlockedInThisThreadAndInThoseThatItStarts) {
  const StopSignals stop;
  std::thread([] {
    sigset_t blocked;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    EXPECT_TRUE(::sigismember(&blocked, SIGINT));
    EXPECT_TRUE(::sigismember(&blocked, SIGTERM));
  }).join();
}

TEST(StopSignals, AThreadThatWasThereBeforePassesASignalOn) {
  sigset_t both;
  ::sigemptyset(&both);
  ::sigaddset(&both, SIGINT);
  const StopSignals stop;
  ::pthread_sigmask(SIG_UNBLOCK, &both, nullptr);
  ::raise(SIGINT);
  await_stop_signal();
  EXPECT_EQ(StopSignals::received(), SIGINT);
}

TEST(StopSignals, WhenTheObjectGoesNoWishIsLeftBehindAndTheMaskIsTheFormerOne) {
  {
    const StopSignals stop;
    ::kill(::getpid(), SIGTERM);
    await_stop_signal();
  }
  EXPECT_EQ(StopSignals::received(), 0);
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_FALSE(::sigismember(&blocked, SIGTERM));
}

TEST(RunCommand, ItsExitCodeIsReturned) {
  EXPECT_EQ(run_command("exit 7"), 7);
  EXPECT_EQ(run_command("true"), 0);
}

TEST(RunCommand, ItCanBeStoppedBySignalsThatAreBlockedHere) {
  const StopSignals stop;
  EXPECT_EQ(run_command("kill -TERM $$; sleep 60"), 128 + SIGTERM);
}

}  // namespace
}  // namespace titan
