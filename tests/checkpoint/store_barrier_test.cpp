#include "titan/checkpoint/store_barrier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"

namespace titan {
namespace {

TEST(StoreBarrier, RankZeroDecidesOnTheMessagesOfAllInOrderRoundAfterRoundAndFewKeysStay) {
  constexpr int64_t kRanks = 5, kRounds = 20;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  std::mutex mutex;
  int64_t right = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto barrier = make_store_barrier(store, "test", rank, kRanks, {.timeout = std::chrono::seconds(60)});
      for (int64_t round = 0; round < kRounds; ++round) {
        const auto message_of = [&](int64_t of) {
          return fmt::format("{} of {}\n\"{}\"", of, round, std::string(1000, 'x'));
        };
        std::vector<std::string> expected;
        for (int64_t other = 0; other < kRanks; ++other) expected.push_back(message_of(other));
        const std::string answer = barrier->decide(message_of(rank), [&](const std::vector<std::string>& messages) {
          return fmt::format("{} \"{}\"", round, messages == expected);
        });
        const std::string told = barrier->tell(message_of(rank));
        const std::vector<std::string> gathered = barrier->gather(message_of(rank));
        const std::lock_guard lock(mutex);
        right += answer == fmt::format("{} \"true\"", round) && told == message_of(0) &&
                 gathered == (rank == 0 ? expected : std::vector<std::string>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kRanks * kRounds);
  EXPECT_LE(store->getNumKeys(), 1);
}

TEST(StoreBarrier, ARankThatDoesNotComeIsAnErrorThatNamesIt) {
  const auto waits = std::make_shared<WaitForGraph>();
  const auto barrier = make_store_barrier(c10::make_intrusive<c10d::HashStore>(), "test", 0, 2,
                                          {.timeout = std::chrono::milliseconds(20), .waits = waits});
  try {
    barrier->tell("here");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure);
    EXPECT_NE(std::string(error.what()).find("rank 1 did not reach a checkpoint barrier"), std::string::npos)
        << error.what();
    EXPECT_EQ(waits->now(), std::vector<int64_t>{1});
  }
}

/// What `act` throws, which must be a peer's failure.
std::string peer_failure_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(StoreBarrier, AnAnswerThatCannotBeReadIsRankZerosFailure) {
  for (const std::string& words : {std::string("{"), std::string("[1, 2]"), std::string(200000, '[')}) {
    const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
    store->set("test/0/heard", words);
    const auto barrier = make_store_barrier(store, "test", 1, 2, {.timeout = std::chrono::seconds(60)});
    const std::string says = peer_failure_of([&] { barrier->tell("here"); });
    EXPECT_TRUE(says.starts_with("rank 0 sent a checkpoint message that cannot be parsed")) << says;
  }
}

TEST(StoreBarrier, WordsOfARankThatSaveAndLoadCannotReadAreItsFailure) {
  // Rank 1 says `words` in every round.
  class Broken : public RankBarrier {
   public:
    explicit Broken(std::string words) : words_(std::move(words)) {}
    int64_t rank() const override { return 0; }
    int64_t size() const override { return 2; }
    std::string decide(std::string message, const Decision& decide) override {
      return decide({std::move(message), words_});
    }

   private:
    const std::string words_;
  };
  MemoryStorage storage;
  save_as_all_ranks(storage, {"root", 1, "run"}, test_layouts()[0], 1);
  for (const std::string& words :
       {std::string("{"), std::string("{}"), std::string("[]"), std::string(200000, '['),
        std::string(R"({"fate": 99, "why": "", "code": 0})"), std::string(R"({"fate": 5, "why": "", "code": 0})")}) {
    Broken barrier(words);
    const std::string says =
        peer_failure_of([&] { load_folder_together(storage, barrier, "root/step-1", [](OpenCheckpoint&) {}); });
    EXPECT_TRUE(says.starts_with("rank 1 sent a checkpoint message that cannot be parsed")) << says;
  }
}

TEST(StoreBarrier, ARankThatIsLateButLivesIsWaitedForAndALineSaysSoAsOftenAsTheResponseTimeoutEnds) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto waits = std::make_shared<WaitForGraph>();
  std::promise<void> told;
  std::vector<std::string> lines;
  const auto tell = [&](const std::string& line) {
    lines.push_back(line);
    EXPECT_EQ(waits->now(), std::vector<int64_t>{1});
    EXPECT_TRUE(waits->health_check_due(WaitForGraph::Clock::now() + std::chrono::seconds(1))) << "the watcher asks on";
    if (lines.size() == 3) told.set_value();
  };
  // What the watcher thread does. It receives signs of life, so it asks no rank for one.
  waits->note_alive(WaitForGraph::Clock::now() + std::chrono::hours(1));
  const BarrierOptions options{std::chrono::minutes(5), std::chrono::milliseconds(20), waits, tell};
  std::thread late([&] {
    told.get_future().wait();
    make_store_barrier(store, "test", 1, 2, {.timeout = std::chrono::minutes(5)})->gather("late");
  });
  const auto heard = make_store_barrier(store, "test", 0, 2, options)->gather("early");
  late.join();
  EXPECT_EQ(heard, (std::vector<std::string>{"early", "late"}));
  EXPECT_GE(lines.size(), 3u);
  EXPECT_EQ(lines[0], "A checkpoint barrier has waited 0 s for rank 1, which responds");
  EXPECT_EQ(waits->now(), std::vector<int64_t>{});
}

TEST(StoreBarrier, ARankOfWhichNothingIsHeardIsNotSaidToLiveAndIsWaitedForUntilTheLimit) {
  int64_t lines = 0;
  const BarrierOptions options{std::chrono::milliseconds(100), std::chrono::milliseconds(10),
                               std::make_shared<WaitForGraph>(), [&](const std::string&) { ++lines; }};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(make_store_barrier(c10::make_intrusive<c10d::HashStore>(), "test", 0, 2, options)->tell("here"), Error);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
  EXPECT_EQ(lines, 0);
}

}  // namespace
}  // namespace titan
