#include "titan/base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "support/signals.h"

namespace titan {
namespace {

using std::chrono::steady_clock;

/// Sends itself these, one after the other, and never comes to a place where it would stop by itself.
void end_after(std::initializer_list<int> signals, std::function<void()> before_end = nullptr) {
  const StopSignals stop(std::move(before_end));
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

TEST(StopSignals, WhatIsLeftToSayIsSaidBeforeTheProcessIsEnded) {
  EXPECT_EXIT(end_after({SIGTERM, SIGINT}, [] { ::write(STDERR_FILENO, "the last line\n", 14); }),
              testing::ExitedWithCode(130), "^the last line\n");
}

TEST(StopSignals, APersonWaitsFiveSecondsAndASchedulerNearlyItsThirty) {
  EXPECT_LE(StopSignals::limit(SIGINT), std::chrono::seconds(5));
  EXPECT_GE(StopSignals::limit(SIGTERM), std::chrono::seconds(20)) << "a step gets most of what the scheduler leaves";
  EXPECT_LT(StopSignals::limit(SIGTERM), std::chrono::seconds(30)) << "SIGKILL follows then";
  EXPECT_EQ(StopSignals::limit(SIGUSR1), std::nullopt);
  EXPECT_EQ(StopSignals::limit(SIGUSR2), std::nullopt);
}

TEST(StopSignals, ARequestToSaveAndStopIsRememberedAsAnyOther) {
  const StopSignals stop;
  ::kill(::getpid(), SIGUSR1);
  await_stop_signal();
  EXPECT_EQ(StopSignals::received(), SIGUSR1);
}

TEST(StopSignals, AHangupIsAStopWithTheLimitOfATermination) {
  EXPECT_EQ(StopSignals::limit(SIGHUP), StopSignals::limit(SIGTERM));
  const StopSignals stop;
  ::kill(::getpid(), SIGHUP);
  await_stop_signal();
  EXPECT_EQ(StopSignals::received(), SIGHUP);
}

TEST(StopSignals, AHangupThatNohupIgnoresStaysIgnoredAndAnInterruptThatAShellIgnoresDoesNot) {
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  {
    const StopSignals stop;
    ::kill(::getpid(), SIGHUP);
    ::kill(::getpid(), SIGINT);
    await_stop_signal();
    EXPECT_EQ(StopSignals::received(), SIGINT);
  }
  for (const int signal : {SIGHUP, SIGINT}) {
    EXPECT_EQ(::signal(signal, SIG_DFL), SIG_IGN) << "as before, signal " << signal;
  }
}

TEST(StopSignals, ARequestToSaveStopsNothingAndIsTakenOnce) {
  const StopSignals stop;
  EXPECT_FALSE(StopSignals::take_save_request());
  ::kill(::getpid(), SIGUSR2);
  while (!StopSignals::take_save_request()) std::this_thread::yield();
  EXPECT_FALSE(StopSignals::take_save_request());
  EXPECT_EQ(StopSignals::received(), 0);
}

TEST(StopSignals, ALastCheckpointMayTakeLongerThanCtrlCAllowsOtherWork) {
  EXPECT_EXIT(
      {
        const StopSignals stop;
        ::kill(::getpid(), SIGINT);
        await_stop_signal();
        StopSignals::allow_for_saving();
        std::this_thread::sleep_for(std::chrono::seconds(6));  // longer than the limit that would have ended it
        ::_exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(StopSignals, WhatIsWorthWaitingForGetsWhatIsLeftOfTheLimitAndAllItWishesWhereThereIsNone) {
  constexpr std::chrono::milliseconds kShort{7};
  constexpr std::chrono::hours kLong{1};
  {
    const StopSignals stop;
    EXPECT_EQ(StopSignals::time_for(kLong), kLong) << "no signal has come";
    ::kill(::getpid(), SIGUSR1);
    await_stop_signal();
    EXPECT_EQ(StopSignals::time_for(kLong), kLong) << "this one sets no limit";
  }
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopSignals stop;
    const auto sent = steady_clock::now();
    ::kill(::getpid(), signal);
    // The limit is set just after the signal is known of.
    while (StopSignals::time_for(kLong) == kLong) std::this_thread::yield();
    const auto left = StopSignals::time_for(kLong);
    EXPECT_LT(left, *StopSignals::limit(SIGTERM)) << "the closing lines take time, too";
    EXPECT_GT(left + (steady_clock::now() - sent), *StopSignals::limit(SIGTERM) - std::chrono::seconds(5));
    EXPECT_EQ(StopSignals::time_for(kShort), std::min<std::chrono::milliseconds>(kShort, left));
    EXPECT_LE(StopSignals::time_for(kLong), left) << "it runs out";
  }
}

TEST(StopSignals, CtrlCAfterAnotherSignalEndsTheProcessAtOnceWithoutAWord) {
  for (const int first : {SIGINT, SIGTERM, SIGUSR1}) {
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
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
      EXPECT_TRUE(::sigismember(&blocked, signal)) << signal;
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

}  // namespace
}  // namespace titan
