#include "titan/distributed/collective_trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

namespace titan {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kOften{1};
constexpr std::chrono::hours kLong{1};

/// What a watch tells.
struct Told {
  std::promise<std::string> promise;
  std::future<std::string> text = promise.get_future();
  OverdueWatch watch{[this](const std::string& told) { promise.set_value(told); }, kOften};
};

TEST(OverdueWatch, NamesWhatDidNotEndInTimeAndTheLimit) {
  Told told;
  told.watch.add([] { return false; }, "all-gather 7 of communicator tp", kLong);
  told.watch.add([] { return false; }, "all-reduce 3 of communicator loss", milliseconds(20));
  EXPECT_EQ(told.text.get(), "all-reduce 3 of communicator loss did not end within 0.02 s: a rank hangs or is behind");
}

TEST(OverdueWatch, FailedWorkIsToldOfWithItsReason) {
  Told told;
  told.watch.add([]() -> bool { throw std::runtime_error("the link is down"); }, "permute 1 of communicator pp", kLong);
  EXPECT_EQ(told.text.get(), "permute 1 of communicator pp failed: the link is down");
}

TEST(OverdueWatch, WorkThatEndsIsLetGoOfAndNeverToldOf) {
  std::atomic<bool> told = false;
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> seen = held;
  {
    OverdueWatch watch([&](const std::string&) { told = true; }, kOften);
    watch.add([looks = 0, held = std::move(held)]() mutable { return ++looks == 3; }, "work", kLong);
    while (!seen.expired()) std::this_thread::yield();
  }
  EXPECT_FALSE(told);
}

TEST(OverdueWatch, EndsWithoutWaitingForTheWork) {
  std::atomic<bool> told = false;
  {
    OverdueWatch watch([&](const std::string&) { told = true; }, kOften);
    watch.add([] { return false; }, "work", kLong);
  }
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace titan
