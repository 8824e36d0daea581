// The loss over a vocabulary that ranks share, on the fused kernels (compiled for the host) and on plain operations.
// The ranks are threads that share memory.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cmath>
#include <functional>
#include <mutex>
#include <thread>

#include "support/host_kernels.h"
#include "support/operation.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/fused_kernels.h"
#include "titan/plan/tensor_layout.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

std::mutex one_rank_at_a_time;  // kernels on the host have one block for the process

Kernels kernels_of_threads() {
  Kernels table = host_kernels();
  table.vocabulary_sums = [](const VocabularySums& a, CUstream_st* stream) {
    const std::lock_guard<std::mutex> lock(one_rank_at_a_time);
    host_kernels().vocabulary_sums(a, stream);
  };
  table.vocabulary_gradient = [](const VocabularyGradient& a, CUstream_st* stream) {
    const std::lock_guard<std::mutex> lock(one_rank_at_a_time);
    host_kernels().vocabulary_gradient(a, stream);
  };
  table.cross_entropy = [](const CrossEntropyRows& a, CUstream_st* stream) {
    const std::lock_guard<std::mutex> lock(one_rank_at_a_time);
    host_kernels().cross_entropy(a, stream);
  };
  return table;
}

struct Case {
  int64_t ranks;
  int64_t vocab_size;
  bool loss_parallel = true;
  at::ScalarType type = at::kFloat;
  bool scale_on_device = false;
  int64_t first_label = 0;
};

struct Outcome {
  at::Tensor loss, d_hidden, d_weight;  // d_hidden: this rank's share of the sum
  TrafficTable traffic;
  std::vector<std::string> said;
};

constexpr int64_t kDim = 16;
const std::vector<int64_t> kTokens{3, 7};

at::Tensor labels_of(const Case& c) {
  at::Tensor labels = integers(kTokens, c.vocab_size, 2);
  labels[0][0] = c.first_label;
  labels[1][1] = c.vocab_size - 1;
  labels[2].narrow(0, 2, 3).fill_(kIgnoredLabel);
  return labels;
}

Outcome on_rank(const Case& c, std::shared_ptr<Communicator> communicator, bool fused) {
  Outcome outcome;
  const Kernels table = kernels_of_threads();
  const FusedKernels kernels(table, at::kCPU, [&](const std::string& what) { outcome.said.push_back(what); });
  const TensorLayout layout({c.vocab_size, kDim}, {{"tp", c.ranks, 0}});
  const Box box = layout.box(std::vector<int64_t>{communicator->rank()});
  Parameter weight({"output.weight", {c.vocab_size, kDim}, {}});
  weight.place(layout, box, box, true);
  const at::Tensor all = normal({c.vocab_size, kDim}, 3, c.type, 0.5);
  weight.set_weight(all.narrow(0, box.offset[0], box.extent[0]).clone());
  weight.set_gradient(at::full(box.extent, NAN, at::TensorOptions(at::kFloat)));
  const TensorParallel parallel{communicator, nullptr, c.loss_parallel};
  CrossEntropyOptions options;
  options.chunks = 2;
  options.tensor_parallel = &parallel;
  const double scale = 1.0 / 18;
  options.loss_scale =
      c.scale_on_device ? LossScale(NAN, at::full({}, scale, at::TensorOptions(at::kDouble))) : LossScale(scale);
  PlainContext plain;
  if (fused) plain.context.loss_kernels = &kernels;
  const at::Tensor hidden = leaf(normal({kTokens[0], kTokens[1], kDim}, 1, c.type));
  outcome.loss = linear_cross_entropy(hidden, labels_of(c), weight, options, plain.context);
  outcome.d_hidden = backward({outcome.loss}, {at::ones({}, at::kDouble)}, {hidden})[0];
  outcome.d_weight = weight.gradient();
  outcome.traffic = communicator->traffic();
  return outcome;
}

std::vector<Outcome> on_ranks(const Case& c, bool fused) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CommunicatorRequest request{.name = "tp", .instance = "/0", .interface = "", .rank = rank, .size = c.ranks};
        std::string refusal;
        std::shared_ptr<Communicator> communicator = make_host_communicator(store, request, refusal);
        ASSERT_NE(communicator, nullptr) << refusal;
        outcomes[static_cast<size_t>(rank)] = on_rank(c, communicator, fused);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

class SharedVocabulary : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(SharedVocabulary, HasTheLossAndGradientsOfPlainOperationsAndSendsTheSame) {
  for (const Case& c :
       {Case{2, 59}, {3, 96}, {4, 13}, {4, 5}, {2, 64, false}, {3, 59, false}, {2, 59, true, at::kFloat, true}}) {
    Case test = c;
    test.type = GetParam();
    const std::vector<Outcome> fused = on_ranks(test, true), plain = on_ranks(test, false);
    for (size_t rank = 0; rank < fused.size(); ++rank) {
      EXPECT_TRUE(same_bits(fused[rank].loss, fused[0].loss)) << "all ranks know the same loss";
      EXPECT_TRUE(near(fused[rank].loss, plain[rank].loss, tolerance(at::kFloat)));
      EXPECT_TRUE(near(fused[rank].d_hidden, plain[rank].d_hidden, 1.5 * tolerance(test.type)));
      EXPECT_TRUE(near(fused[rank].d_weight, plain[rank].d_weight, 1.5 * tolerance(test.type)));
      EXPECT_EQ(fused[rank].traffic, plain[rank].traffic);
      EXPECT_TRUE(fused[rank].said.empty());
    }
  }
}

TEST_P(SharedVocabulary, IsTheWholeOnesLossOnTheFusedKernels) {
  Case test{3, 59};
  test.type = GetParam();
  const std::vector<Outcome> parts = on_ranks(test, true);
  const Outcome whole = on_ranks({1, 59, true, test.type}, true)[0];
  at::Tensor d_hidden = at::zeros(whole.d_hidden.sizes(), at::kFloat);
  std::vector<at::Tensor> d_weight;
  for (const Outcome& part : parts) {
    d_hidden += part.d_hidden;
    d_weight.push_back(part.d_weight);
  }
  EXPECT_TRUE(near(parts[0].loss, whole.loss, tolerance(at::kFloat)));
  EXPECT_TRUE(near(d_hidden, whole.d_hidden, 1.5 * tolerance(test.type)));
  EXPECT_TRUE(near(at::cat(d_weight), whole.d_weight, 1.5 * tolerance(test.type)));
}

TEST_P(SharedVocabulary, ALabelThatIsNoWordMakesEveryRanksLossNotANumber) {
  for (const int64_t label : {59, -5}) {
    for (const bool fused : {true, false}) {
      Case test{3, 59};
      test.type = GetParam();
      test.first_label = label;
      for (const Outcome& outcome : on_ranks(test, fused)) {
        EXPECT_TRUE(std::isnan(outcome.loss.item<double>())) << label << ", fused: " << fused;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fused, SharedVocabulary, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace titan
