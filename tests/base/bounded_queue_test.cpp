#include "titan/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace titan {
namespace {

using Queue = BoundedQueue<std::unique_ptr<int>>;
constexpr Queue::Seconds kShort{0.01};

TEST(BoundedQueue, ItemsComeInOrderAndThenTheFailure) {
  Queue queue(2);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.push(std::make_unique<int>(i)));
  queue.end(std::make_exception_ptr(std::runtime_error("damaged")));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(**queue.take(), i);
  EXPECT_THROW(queue.take(), std::runtime_error);
}

TEST(BoundedQueue, TheWeightsOfTheQueuedItemsDecideWhetherThereIsRoom) {
  Queue queue(10);
  queue.push(std::make_unique<int>(0), 9);
  EXPECT_TRUE(queue.wait_for_room());
  queue.push(std::make_unique<int>(1), 9);
  std::atomic<bool> had_room = false;
  std::thread filler([&] { had_room = queue.wait_for_room(); });
  std::this_thread::sleep_for(kShort);
  EXPECT_FALSE(had_room);
  EXPECT_EQ(**queue.take(), 0);
  filler.join();
  EXPECT_TRUE(had_room);
}

TEST(BoundedQueue, AnEmptyOneStallsUntilItEnds) {
  Queue queue(1);
  std::optional<std::unique_ptr<int>> item;
  EXPECT_EQ(queue.take(item, kShort), Queue::Outcome::stalled);
  EXPECT_FALSE(queue.wait_for_end(kShort));
  queue.end();
  EXPECT_TRUE(queue.wait_for_end(kShort));
  EXPECT_EQ(queue.take(item, kShort), Queue::Outcome::end);
  EXPECT_FALSE(queue.take());
}

TEST(BoundedQueue, StoppingFreesWhoWaitsAndDropsWhatIsLeft) {
  Queue queue(1);
  queue.push(std::make_unique<int>(0));
  std::thread filler([&] { EXPECT_FALSE(queue.wait_for_room()); });
  queue.stop();
  filler.join();
  EXPECT_FALSE(queue.push(std::make_unique<int>(1)));
  EXPECT_FALSE(queue.take());
}

TEST(BoundedQueue, SeveralTakersShareTheItems) {
  Queue queue(4);
  std::atomic<int> sum = 0;
  std::vector<std::thread> takers;
  for (int i = 0; i < 3; ++i) {
    takers.emplace_back([&] {
      while (std::optional<std::unique_ptr<int>> item = queue.take()) sum += **item;
    });
  }
  for (int i = 1; i <= 1000 && queue.wait_for_room(); ++i) queue.push(std::make_unique<int>(i));
  queue.end();
  for (std::thread& taker : takers) taker.join();
  EXPECT_EQ(sum, 500500);
}

}  // namespace
}  // namespace titan
