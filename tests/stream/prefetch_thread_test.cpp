#include "src/stream/prefetch_thread.h"

#include <atomic>
#include <future>
#include <stdexcept>

namespace titan {
namespace {

using Thread = PrefetchThread<int>;
using Outcome = Thread::Outcome;
constexpr Thread::Seconds kLong{60};

/// 0, 1, 2, … up to `count`.
Thread::Produce counting(int count) {
  return [next = 0, count]() mutable -> std::optional<int> {
    if (next == count) return std::nullopt;
    return next++;
  };
}

TEST(PrefetchThread, HandsOutEverythingInOrderAndThenTheEnd) {
  Thread thread(3, counting(100));
  std::optional<int> item;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(thread.take(item, kLong), Outcome::item);
    EXPECT_EQ(item, i);
  }
  EXPECT_EQ(thread.take(item, kLong), Outcome::end);
  EXPECT_EQ(thread.take(item, kLong), Outcome::end);
}

TEST(PrefetchThread, FillsTheQueueToItsDepthAndNoFurther) {
  std::atomic<int> made{0};
  std::promise<void> full;
  Thread thread(4, [&]() -> std::optional<int> {
    if (++made == 4) full.set_value();
    return made.load();
  });
  full.get_future().wait();
  std::optional<int> item;
  for (int i = 1; i <= 50; ++i) {
    ASSERT_EQ(thread.take(item, kLong), Outcome::item);
    EXPECT_LE(made, i + 4);
    EXPECT_LE(thread.ready(), 4);
  }
}

TEST(PrefetchThread, WhatTheThreadThrowsArrivesAfterTheItemsBeforeIt) {
  Thread thread(8, [next = 0]() mutable -> std::optional<int> {
    if (next == 2) throw std::runtime_error("the disk is gone");
    return next++;
  });
  std::optional<int> item;
  EXPECT_EQ(thread.take(item, kLong), Outcome::item);
  EXPECT_EQ(thread.take(item, kLong), Outcome::item);
  EXPECT_THROW(thread.take(item, kLong), std::runtime_error);
  EXPECT_THROW(thread.take(item, kLong), std::runtime_error);
}

TEST(PrefetchThread, AStallIsReportedAndTheItemCanStillComeLater) {
  std::promise<void> release;
  Thread thread(1, [gate = release.get_future().share(), given = false]() mutable -> std::optional<int> {
    if (given) return std::nullopt;
    gate.wait();
    given = true;
    return 7;
  });
  std::optional<int> item;
  EXPECT_EQ(thread.take(item, Thread::Seconds(0.001)), Outcome::stalled);
  EXPECT_FALSE(item);
  release.set_value();
  EXPECT_EQ(thread.take(item, kLong), Outcome::item);
  EXPECT_EQ(item, 7);
}

TEST(PrefetchThread, AThreadThatWaitsForRoomInTheQueueIsEndedByDestruction) {
  auto token = std::make_shared<int>(0);
  {
    Thread thread(2, [token]() -> std::optional<int> { return *token; });
    std::optional<int> item;
    thread.take(item, kLong);
  }
  EXPECT_EQ(token.use_count(), 1);  // joined: the thread and what it held are gone
}

TEST(PrefetchThread, AThreadThatHangsIsLeftBehindAndOwnsWhatItStillUses) {
  std::promise<void> entered, release;
  auto finished = std::make_shared<std::promise<void>>();  // shared: the thread may outlive the test by a moment
  auto owned = std::make_shared<std::string>("still here");
  Thread::Produce hang = [&entered, owned, finished, gate = release.get_future().share()]() -> std::optional<int> {
    entered.set_value();
    gate.wait();
    EXPECT_EQ(*owned, "still here");
    finished->set_value();
    return std::nullopt;
  };
  {
    Thread thread(1, std::move(hang), Thread::Seconds(0.001));
    entered.get_future().wait();
  }
  EXPECT_EQ(owned.use_count(), 2);  // the test's and the thread's
  release.set_value();
  finished->get_future().wait();
}

}  // namespace
}  // namespace titan
