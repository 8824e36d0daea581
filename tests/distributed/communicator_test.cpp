// What every backend for CPUs must do, ranks being threads of this process.
#include "titan/distributed/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "titan/base/error.h"
#include "titan/distributed/mesh_communicators.h"

namespace titan {
namespace {

enum class Backend { host, gloo };

std::unique_ptr<Communicator> make(Backend backend, const c10::intrusive_ptr<c10d::Store>& store,
                                   const CommunicatorRequest& request) {
  if (backend == Backend::gloo) return make_gloo_communicator(store, request);
  std::string refusal;
  auto communicator = make_host_communicator(store, request, refusal);
  if (!communicator) throw Error(ExitCode::launcher, refusal);
  return communicator;
}

/// Runs `act` on `size` ranks, each with its communicator, and throws what a rank threw.
void on_ranks_over(Backend backend, int64_t size, const std::function<void(Communicator&)>& act,
                   std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);  // made for one rank in a process
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CommunicatorRequest request{
            .name = "test", .instance = "/0", .interface = "lo", .rank = rank, .size = size, .timeout = timeout};
        act(*make(backend, store, request));
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

class Communicators : public ::testing::TestWithParam<Backend> {
 protected:
  void on_ranks(int64_t size, const std::function<void(Communicator&)>& act,
                std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    on_ranks_over(GetParam(), size, act, timeout);
  }
};

/// Different numbers on every rank and in every tensor.
at::Tensor numbers(at::IntArrayRef shape, int64_t rank, int64_t salt = 0) {
  at::Tensor values = at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
  return at::sin(values * 0.37 + static_cast<double>(rank) * 1.7 + static_cast<double>(salt));
}

TEST_P(Communicators, GatherPutsTheRowsOfAllRanksBelowEachOther) {
  on_ranks(3, [](Communicator& communicator) {
    at::Tensor weights = at::empty({6, 5}), bias = at::empty({3});
    communicator
        .all_gather({weights, bias}, {numbers({2, 5}, communicator.rank()), numbers({1}, communicator.rank(), 9)})
        ->wait();
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(weights.narrow(0, 2 * rank, 2).equal(numbers({2, 5}, rank)));
      EXPECT_TRUE(bias.narrow(0, rank, 1).equal(numbers({1}, rank, 9)));
    }
  });
}

TEST_P(Communicators, ReduceScatterGivesEachRankItsRowsOfTheSums) {
  on_ranks(3, [](Communicator& communicator) {
    at::Tensor rows = at::empty({2, 4}), more = at::empty({1});
    communicator
        .reduce_scatter({rows, more}, {numbers({6, 4}, communicator.rank()), numbers({3}, communicator.rank(), 5)})
        ->wait();
    at::Tensor sum = numbers({6, 4}, 0) + numbers({6, 4}, 1) + numbers({6, 4}, 2);
    at::Tensor sum_of_more = numbers({3}, 0, 5) + numbers({3}, 1, 5) + numbers({3}, 2, 5);
    EXPECT_TRUE(rows.equal(sum.narrow(0, 2 * communicator.rank(), 2)));
    EXPECT_TRUE(more.equal(sum_of_more.narrow(0, communicator.rank(), 1)));
  });
}

TEST_P(Communicators, NarrowSumsAreRoundedOnce) {
  on_ranks(2, [](Communicator& communicator) {
    at::Tensor rows = at::empty({1, 64}, at::kBFloat16);
    communicator.reduce_scatter({rows}, {numbers({2, 64}, communicator.rank()).to(at::kBFloat16)})->wait();
    auto widened = [](int64_t rank) { return numbers({2, 64}, rank).to(at::kBFloat16).to(at::kFloat); };
    EXPECT_TRUE(rows[0].equal((widened(0) + widened(1))[communicator.rank()].to(at::kBFloat16)));
  });
}

TEST_P(Communicators, AllReduceWorksInPlaceForEveryReductionAndType) {
  on_ranks(4, [](Communicator& communicator) {
    const int64_t rank = communicator.rank();
    at::Tensor counts = at::full({22}, rank + (int64_t{1} << 40), at::kLong);
    at::Tensor apart = at::full({3, 2}, static_cast<float>(rank));
    at::Tensor exact = at::full({}, 0.125 * static_cast<double>(rank), at::kDouble);
    communicator.all_reduce({counts})->wait();
    communicator.all_reduce({apart, apart.new_full({1}, 2.0)}, Reduction::max)->wait();
    communicator.all_reduce({exact}, Reduction::min)->wait();
    EXPECT_TRUE(counts.eq(6 + (int64_t{1} << 42)).all().item<bool>());
    EXPECT_TRUE(apart.eq(3).all().item<bool>());
    EXPECT_EQ(exact.item<double>(), 0.0);
  });
}

TEST_P(Communicators, EveryRankGetsTheSameBits) {
  std::vector<at::Tensor> sums(4);
  on_ranks(4, [&](Communicator& communicator) {
    at::Tensor values = numbers({1000}, communicator.rank()) * 1e3;
    communicator.all_reduce({values})->wait();
    sums[static_cast<size_t>(communicator.rank())] = values;
  });
  for (const at::Tensor& sum : sums) EXPECT_TRUE(sum.equal(sums[0]));
}

TEST_P(Communicators, ManyMayBeUnderWayAndBeWaitedForInAnyOrder) {
  on_ranks(3, [](Communicator& communicator) {
    std::vector<at::Tensor> outputs;
    std::vector<Pending> pending;
    for (int64_t i = 0; i < 11; ++i) {
      const int64_t rows = 1 + 400 * (i % 3);  // later messages are larger than memory made for the first
      outputs.push_back(at::empty({3 * rows, 7}));
      pending.push_back(communicator.all_gather({outputs.back()}, {numbers({rows, 7}, communicator.rank(), i)}));
    }
    for (size_t i : {3, 0, 1, 10, 9, 2, 8, 7, 4, 6, 5}) pending[i]->wait();
    for (int64_t i = 0; i < 11; ++i) {
      const int64_t rows = 1 + 400 * (i % 3);
      for (int64_t rank = 0; rank < 3; ++rank) {
        const at::Tensor part = outputs[static_cast<size_t>(i)].narrow(0, rank * rows, rows);
        EXPECT_TRUE(part.equal(numbers({rows, 7}, rank, i))) << i << " from " << rank;
      }
    }
  });
}

TEST_P(Communicators, ARankThatSendsNothingIsAnErrorThatNamesTheGroup) {
  try {
    on_ranks(
        2,
        [](Communicator& communicator) {
          at::Tensor value = at::ones({1});
          if (communicator.rank() == 0) communicator.all_reduce({value})->wait();
        },
        std::chrono::milliseconds(200));
    FAIL() << "nobody answered, and nobody said so";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure);
    EXPECT_NE(std::string(error.what()).find("communicator test"), std::string::npos) << error.what();
  }
}

TEST_P(Communicators, CallsAndBytesAreCounted) {
  on_ranks(2, [](Communicator& communicator) {
    at::Tensor whole = at::empty({4, 8}), part = at::empty({2, 8});
    communicator.all_gather({whole}, {part.zero_()})->wait();
    communicator.reduce_scatter({part}, {whole})->wait();
    communicator.all_reduce({part})->wait();
    EXPECT_EQ(communicator.traffic()[size_t(Collective::all_gather)], (Traffic{1, 128}));
    EXPECT_EQ(communicator.traffic()[size_t(Collective::reduce_scatter)], (Traffic{1, 128}));
    EXPECT_EQ(communicator.traffic()[size_t(Collective::all_reduce)], (Traffic{1, 64}));
  });
}

INSTANTIATE_TEST_SUITE_P(Cpu, Communicators, ::testing::Values(Backend::host, Backend::gloo),
                         [](const auto& backend) { return backend.param == Backend::host ? "Host" : "Gloo"; });

TEST(HostCommunicator, AMessageIsWhatItWasWhenItWasIssued) {
  on_ranks_over(Backend::host, 2, [](Communicator& communicator) {
    at::Tensor mine = numbers({4}, communicator.rank()), all = at::empty({8});
    Pending pending = communicator.all_gather({all}, {mine});
    EXPECT_TRUE(pending->inputs_free());
    mine.zero_();
    pending->wait();
    EXPECT_TRUE(all.narrow(0, 0, 4).equal(numbers({4}, 0)));
    EXPECT_TRUE(all.narrow(0, 4, 4).equal(numbers({4}, 1)));
  });
}

TEST(HostCommunicator, AMessageIsNotOverwrittenBeforeAllRanksHaveReadIt) {
  std::promise<void> tried;
  on_ranks_over(
      Backend::host, 2,
      [&](Communicator& communicator) {
        const at::Tensor mine = numbers({4}, communicator.rank());
        std::vector<Pending> pending;
        auto gather = [&] { pending.push_back(communicator.all_gather({at::empty({8})}, {mine})); };
        for (int i = 0; i < 4; ++i) gather();
        if (communicator.rank() == 1) {  // which has read none of them
          tried.get_future().wait_for(std::chrono::seconds(60));
          return;
        }
        EXPECT_THROW(gather(), Error) << "the memory of the first message is not free";
        tried.set_value();
      },
      std::chrono::milliseconds(200));
}

TEST(HostCommunicator, WithoutMemoryToShareAllMembersAreTold) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  // What a first rank of another container would publish: a process that is not here.
  store->set("host_communicator/test/0", std::vector<uint8_t>{'0', ':', '0', ':', '1', ':', '1'});
  std::vector<std::string> refusals(2);
  std::vector<std::thread> threads;
  for (int64_t rank : {1, 2}) {
    threads.emplace_back([&, rank] {
      CommunicatorRequest request{.name = "test", .instance = "/0", .interface = "", .rank = rank, .size = 3};
      EXPECT_EQ(make_host_communicator(store, request, refusals[static_cast<size_t>(rank - 1)]), nullptr);
    });
  }
  const std::string ready = "ready";
  store->set("host_communicator/test/0/answer/0", std::vector<uint8_t>(ready.begin(), ready.end()));
  for (std::thread& thread : threads) thread.join();
  for (const std::string& refusal : refusals) EXPECT_NE(refusal.find("cannot be opened"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace titan
