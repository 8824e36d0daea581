#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <mutex>
#include <thread>

#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/ops/sequence_parallel.h"

namespace titan {
namespace {

constexpr int64_t kRanks = 4;

/// Runs `act` as four ranks that share memory, each in a thread; what one throws fails the test.
void as_ranks(const std::function<void(int64_t rank, const SequenceParallel& exchange)>& act,
              std::vector<std::vector<std::string>>* traces = nullptr) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  if (traces) traces->resize(kRanks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::shared_ptr<PeerMemory> memory =
            make_shared_peer_memory(store, "test", rank, kRanks, 1 << 16, std::chrono::seconds(30));
        ExchangeTrace trace;
        if (traces) {
          trace = [&, rank](const char* what, int64_t chunk) {
            (*traces)[static_cast<size_t>(rank)].push_back(fmt::format("{} {}", what, chunk));
          };
        }
        act(rank, *make_async_sequence_parallel(memory, trace));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

at::Tensor shard_of(int64_t rank, uint64_t round, at::ScalarType type = at::kFloat) {
  return normal({3, 5}, 100 * round + static_cast<uint64_t>(rank), type);
}

TEST(AsyncSequenceParallel, GathersEveryRanksRowsInRankOrderRoundAfterRound) {
  as_ranks([](int64_t rank, const SequenceParallel& exchange) {
    for (uint64_t round = 0; round < 50; ++round) {
      const at::Tensor whole = gather_rows(exchange, shard_of(rank, round));
      for (int64_t from = 0; from < kRanks; ++from) {
        ASSERT_TRUE(same_bits(whole.narrow(0, 3 * from, 3), shard_of(from, round))) << round;
      }
    }
  });
}

TEST(AsyncSequenceParallel, ScattersTheSumInFp32AndRankOrderOnWhicheverRankItIsMade) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    as_ranks([type](int64_t rank, const SequenceParallel& exchange) {
      for (uint64_t round = 0; round < 20; ++round) {
        auto partial = [&](int64_t from) {
          return normal({3 * kRanks, 5}, 100 * round + static_cast<uint64_t>(from), type);
        };
        const at::Tensor mine = scatter_rows(exchange, partial(rank));
        at::Tensor expected = partial(0).narrow(0, 3 * rank, 3).to(at::kFloat);
        for (int64_t from = 1; from < kRanks; ++from) expected = expected + partial(from).narrow(0, 3 * rank, 3);
        ASSERT_TRUE(same_bits(mine, expected.to(type))) << round;
      }
    });
  }
}

TEST(AsyncSequenceParallel, GathersAndScattersMayFollowEachOtherInAnyOrder) {
  as_ranks([](int64_t rank, const SequenceParallel& exchange) {
    for (uint64_t round = 0; round < 40; ++round) {
      const at::Tensor whole = gather_rows(exchange, shard_of(rank, round));
      const at::Tensor mine = scatter_rows(exchange, whole);
      ASSERT_TRUE(near(mine, static_cast<double>(kRanks) * shard_of(rank, round), 1e-6));
      if (round % 3 == 0) gather_rows(exchange, mine);
    }
  });
}

TEST(AsyncSequenceParallel, AChunkIsReadWhileTheOneBeforeItIsMultipliedAndWrittenWhileTheNextIs) {
  std::vector<std::vector<std::string>> traces;
  as_ranks([](int64_t rank, const SequenceParallel& exchange) { gather_rows(exchange, shard_of(rank, 1)); }, &traces);
  EXPECT_EQ(traces[1], (std::vector<std::string>{"read 2", "multiply 1", "read 3", "multiply 2", "read 0", "multiply 3",
                                                 "multiply 0"}))
      << "own rows first; a read is issued before the product that runs beside it";
  traces.clear();
  as_ranks(
      [](int64_t rank, const SequenceParallel& exchange) {
        scatter_rows(exchange, normal({12, 5}, static_cast<uint64_t>(rank)));
      },
      &traces);
  EXPECT_EQ(traces[1], (std::vector<std::string>{"multiply 2", "write 2", "multiply 3", "write 3", "multiply 0",
                                                 "write 0", "multiply 1"}))
      << "own rows last; a write is under way while the next product runs";
}

TEST(AsyncSequenceParallel, ARankThatDoesNotAnswerIsNamedWithinTheTimeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::string message;
  std::thread silent([&] { make_shared_peer_memory(store, "silent", 1, 2, 4096, std::chrono::seconds(30)); });
  std::shared_ptr<PeerMemory> memory = make_shared_peer_memory(store, "silent", 0, 2, 4096, std::chrono::hours(1));
  silent.join();
  memory->set_timeout(std::chrono::milliseconds(50));
  try {
    gather_rows(*make_async_sequence_parallel(memory), normal({3, 5}, 1));
    FAIL() << "nobody answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure);
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
