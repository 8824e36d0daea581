// Gloo between ranks that are threads: sums of narrow numbers, and messages without any element.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "titan/distributed/mesh_communicators.h"

namespace titan {
namespace {

/// Calls `work` for every rank of a communicator on a thread of its own; what one throws fails the test.
void on_ranks(int64_t size, const std::function<void(Communicator& communicator)>& work) {
  // LibTorch's flight recorder is one for the process and not made for several ranks in it.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CommunicatorRequest request;
        request.name = "test";
        request.interface = "lo";
        request.rank = rank;
        request.size = size;
        work(*make_gloo_communicator(store, request));
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

at::Tensor narrow(std::vector<double> values) { return at::tensor(values, at::kDouble).to(at::kBFloat16); }

/// Added one by one in bf16, 256 + 1 + 1 + 2 would end at 258.
const std::vector<double> kShares{256, 1, 1, 2};
constexpr double kSum = 260;

TEST(GlooCommunicator, AnAllReduceOfNarrowNumbersAddsInFp32AndRoundsOnce) {
  on_ranks(4, [](Communicator& communicator) {
    const double mine = kShares[static_cast<size_t>(communicator.rank())];
    at::Tensor a = narrow({mine, -mine, 0.5 * mine});  // three elements among four ranks
    at::Tensor b = narrow({2 * mine, mine}).view({2, 1});
    communicator.all_reduce({a, b})->wait();
    EXPECT_TRUE(a.equal(narrow({kSum, -kSum, 0.5 * kSum}))) << a;
    EXPECT_TRUE(b.equal(narrow({2 * kSum, kSum}).view({2, 1}))) << b;
    EXPECT_EQ(communicator.traffic()[static_cast<size_t>(Collective::all_reduce)], (Traffic{1, 10}));
  });
}

TEST(GlooCommunicator, AReduceScatterOfNarrowNumbersAddsInFp32AndRoundsOnce) {
  on_ranks(4, [](Communicator& communicator) {
    const double mine = kShares[static_cast<size_t>(communicator.rank())];
    at::Tensor sum = narrow({0});
    communicator.reduce_scatter({sum}, {narrow({mine, 2 * mine, 4 * mine, 8 * mine})})->wait();
    EXPECT_EQ(sum.item<double>(), kSum * static_cast<double>(1 << communicator.rank()));
  });
}

TEST(GlooCommunicator, ReductionsUnderWayTogetherDoNotMixUpTheirParts) {
  on_ranks(3, [](Communicator& communicator) {
    std::vector<at::Tensor> sums;
    std::vector<Pending> pending;
    for (int i = 0; i < 4; ++i) {
      sums.push_back(at::full({5 + i}, double(i + 1), at::TensorOptions(i % 2 ? at::kFloat : at::kBFloat16)));
      pending.push_back(communicator.all_reduce({sums.back()}));
    }
    for (int i = 0; i < 4; ++i) {
      pending[static_cast<size_t>(i)]->wait();
      EXPECT_TRUE(sums[static_cast<size_t>(i)].eq(3 * (i + 1)).all().item<bool>()) << i;
    }
  });
}

TEST(GlooCommunicator, MessagesWithoutAnyElementArrive) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    on_ranks(3, [type](Communicator& communicator) {
      const at::Tensor nothing = at::empty({0, 4}, at::TensorOptions(type));
      communicator.all_gather({at::empty({0, 4}, nothing.options())}, {nothing})->wait();
      communicator.reduce_scatter({nothing}, {at::empty({0, 4}, nothing.options())})->wait();
      communicator.all_reduce({nothing})->wait();
      at::Tensor one = at::ones({1}, nothing.options());
      communicator.all_reduce({one})->wait();
      EXPECT_EQ(one.item<double>(), 3) << "and the next message is its own";
    });
  }
}

}  // namespace
}  // namespace titan
