// Messages between two ranks: around a ring, along a chain, several at once; ranks are threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>

#include "titan/base/error.h"
#include "titan/distributed/mesh_communicators.h"

namespace titan {
namespace {

constexpr int64_t kRanks = 3;

enum class PermuteBackend { host, gloo };
class Permute : public ::testing::TestWithParam<PermuteBackend> {};

std::unique_ptr<Communicator> make(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorRequest& request) {
  if (Permute::GetParam() == PermuteBackend::gloo) return make_gloo_communicator(store, request);
  std::string refusal;
  return make_host_communicator(store, request, refusal);
}

/// Runs `work` as every rank of one communicator; expectations inside count as the test's.
void as_ranks(const std::function<void(Communicator& communicator)>& work) {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);  // the library's recorder is made for one rank a process
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorRequest request{.name = "ring", .instance = "/0", .interface = "lo", .rank = rank, .size = kRanks};
      request.timeout = std::chrono::seconds(60);
      try {
        work(*make(store, request));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int64_t next(const Communicator& communicator) { return (communicator.rank() + 1) % communicator.size(); }
int64_t previous(const Communicator& communicator) {
  return (communicator.rank() + communicator.size() - 1) % communicator.size();
}

at::Tensor filled(double value) { return at::full({2, 3}, value); }

TEST_P(Permute, HandsEveryRankThePreviousOnesTensors) {
  as_ranks([](Communicator& communicator) {
    const auto rank = static_cast<double>(communicator.rank());
    at::Tensor first = at::empty({2, 3}), second = at::empty({2, 3});
    communicator
        .permute({first, second}, {filled(rank), filled(10 + rank)}, next(communicator), previous(communicator))
        ->wait();
    const auto from = static_cast<double>(previous(communicator));
    EXPECT_TRUE(at::equal(first, filled(from)));
    EXPECT_TRUE(at::equal(second, filled(10 + from)));
    EXPECT_EQ(communicator.traffic()[static_cast<size_t>(Collective::permute)], (Traffic{1, 2 * 6 * 4}));
  });
}

TEST_P(Permute, MessagesUnderWayAtOnceArriveInTheOrderTheyWereSent) {
  as_ranks([](Communicator& communicator) {
    std::vector<at::Tensor> received;
    std::vector<Pending> pending;
    for (int message = 0; message < 4; ++message) {
      received.push_back(at::empty({2, 3}));
      const double value = 100 * message + static_cast<double>(communicator.rank());
      pending.push_back(
          communicator.permute({received.back()}, {filled(value)}, next(communicator), previous(communicator)));
    }
    for (size_t message = pending.size(); message-- > 0;) {
      pending[message]->wait();
      const double value = 100 * static_cast<double>(message) + static_cast<double>(previous(communicator));
      EXPECT_TRUE(at::equal(received[message], filled(value))) << message;
    }
  });
}

TEST_P(Permute, TheEndsOfAChainOnlySendOrOnlyReceive) {
  as_ranks([](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    const bool last = communicator.rank() + 1 == communicator.size();
    std::vector<at::Tensor> received, sent;
    if (!first) received.push_back(at::empty({2, 3}));
    if (!last) sent.push_back(filled(static_cast<double>(communicator.rank())));
    communicator
        .permute(received, sent, last ? kNoRank : communicator.rank() + 1, first ? kNoRank : communicator.rank() - 1)
        ->wait();
    if (!first) {
      EXPECT_TRUE(at::equal(received[0], filled(static_cast<double>(communicator.rank() - 1))));
    }
    const int64_t bytes = last ? 0 : 6 * 4;
    EXPECT_EQ(communicator.traffic()[static_cast<size_t>(Collective::permute)], (Traffic{1, bytes}));
  });
}

TEST_P(Permute, ManyMessagesOfManySizesMayWaitBeforeTheyAreTaken) {
  as_ranks([](Communicator& communicator) {
    std::vector<Pending> sends;
    std::vector<at::Tensor> sent;
    if (communicator.rank() == 0) {
      for (int64_t i = 0; i < 40; ++i) {
        sent.push_back(at::full({1 + 13 * (i % 7)}, static_cast<double>(i)));
        sends.push_back(communicator.transfer({}, {{1, {sent.back()}}}));
      }
      for (Pending& send : sends) send->wait();
    }
    if (communicator.rank() != 1) return;
    for (int64_t i = 0; i < 40; ++i) {
      at::Tensor received = at::empty({1 + 13 * (i % 7)});
      communicator.transfer({{0, {received}}}, {})->wait();
      EXPECT_TRUE(received.eq(static_cast<double>(i)).all().item<bool>()) << i;
    }
  });
}

TEST_P(Permute, OneCallMayHoldMessagesBothWaysBetweenSeveralPairs) {
  as_ranks([](Communicator& communicator) {
    std::vector<Message> receives, sends;
    for (int64_t peer = 0; peer < kRanks; ++peer) {
      if (peer == communicator.rank()) continue;
      sends.push_back({peer, {filled(static_cast<double>(10 * communicator.rank() + peer))}});
      receives.push_back({peer, {at::empty({2, 3})}});
    }
    const std::vector<Message> expected = receives;
    communicator.transfer(receives, sends)->wait();
    for (const Message& message : expected) {
      EXPECT_TRUE(at::equal(message.tensors[0], filled(static_cast<double>(10 * message.peer + communicator.rank()))));
    }
    EXPECT_EQ(communicator.traffic()[static_cast<size_t>(Collective::permute)], (Traffic{1, 2 * 6 * 4}));
  });
}

INSTANTIATE_TEST_SUITE_P(Cpu, Permute, ::testing::Values(PermuteBackend::host, PermuteBackend::gloo),
                         [](const auto& backend) { return backend.param == PermuteBackend::host ? "Host" : "Gloo"; });

TEST(FakePermute, OfAFakeGroupBringsZeros) {
  const auto communicator = make_fake_communicator("ring", 1, 4);
  at::Tensor received = filled(7);
  communicator->permute({received}, {filled(1)}, 2, 0)->wait();
  EXPECT_TRUE(at::equal(received, filled(0)));
}

TEST(FakePermute, SendsAllItsBytesWhateverTheNumberOfRanks) {
  EXPECT_EQ(sent_bytes(Collective::permute, {3, 600}, 2), 600);
  EXPECT_EQ(sent_bytes(Collective::permute, {3, 600}, 8), 600);
}

TEST(FakePermute, RefusesAListWithoutARankAndARankItDoesNotHave) {
  const auto communicator = make_fake_communicator("ring", 1, 4);
  EXPECT_THROW((void)communicator->permute({}, {filled(1)}, kNoRank, kNoRank), InvariantError);
  EXPECT_THROW((void)communicator->permute({filled(1)}, {}, kNoRank, 4), InvariantError);
  EXPECT_THROW((void)communicator->permute({filled(1)}, {filled(1)}, 1, 0), InvariantError);
}

}  // namespace
}  // namespace titan
