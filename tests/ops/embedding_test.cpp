#include "titan/ops/embedding.h"

#include <gtest/gtest.h>

#include "support/allocations.h"
#include "support/operation.h"

namespace titan {
namespace {

at::Tensor anchor() { return at::empty({0}).set_requires_grad(true); }

TEST(Embedding, LooksRowsUpAndAddsTheGradientsOfRepeatedTokens) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    auto weight = live_parameter("tok_embeddings", normal({11, 7}, 1, type));
    PlainContext plain;
    const at::Tensor tokens = at::tensor({3, 3, 0, 10, 3, 0}, at::kLong).view({2, 3});
    at::Tensor start = anchor();
    const at::Tensor rows = embedding(start, tokens, *weight, nullptr, plain.context);
    EXPECT_TRUE(same_bits(rows, weight->weight().index_select(0, tokens.flatten()).view({6, 7})));
    const at::Tensor d = normal({6, 7}, 2, type);
    backward({rows}, {d}, {start});
    at::Tensor expected = at::zeros({11, 7}, at::kDouble);
    expected.index_add_(0, tokens.flatten(), as_double(d));
    EXPECT_TRUE(near(weight->gradient(), expected, tolerance(at::kFloat))) << "sums are fp32";
    EXPECT_EQ(weight->gradient()[1].abs().sum().item<double>(), 0.0) << "a token that does not occur";
  }
}

TEST(Embedding, ASecondMicrobatchAddsToTheFirst) {
  auto weight = live_parameter("tok_embeddings", normal({5, 4}, 1));
  PlainContext plain;
  for (int64_t token : {2, 2, 4}) {
    at::Tensor start = anchor();
    const at::Tensor rows = embedding(start, at::full({1, 1}, token, at::kLong), *weight, nullptr, plain.context);
    backward({rows}, {at::ones({1, 4})}, {start});
  }
  EXPECT_TRUE(same_bits(weight->gradient().sum(1), at::tensor({0.0f, 0.0f, 8.0f, 0.0f, 4.0f})));
}

TEST(Embedding, AFrozenTableGetsNoGradient) {
  auto weight = live_parameter("tok_embeddings", normal({5, 4}, 1), /*trainable=*/false);
  PlainContext plain;
  at::Tensor start = anchor();
  backward({embedding(start, at::zeros({1, 1}, at::kLong), *weight, nullptr, plain.context)}, {at::ones({1, 4})},
           {start});
  EXPECT_FALSE(weight->gradient_written());
}

/// Rank `rank` of `ranks` that share the rows of a table `whole`; what it has of the gradient of `tokens`.
at::Tensor shard_gradient(const at::Tensor& whole, int64_t ranks, int64_t rank, const at::Tensor& tokens,
                          const at::Tensor& d, at::ScalarType gradient_type) {
  const TensorLayout layout(whole.sizes().vec(), {{"tp", ranks, 0}});
  const Box box = layout.box(std::vector<int64_t>{rank});
  Parameter weight({"tok_embeddings", whole.sizes().vec(), {}});
  weight.place(layout, box, box, true);
  weight.set_weight(whole.narrow(0, box.offset[0], box.extent[0]).clone());
  weight.set_gradient(at::full(box.extent, NAN, at::TensorOptions(gradient_type)));
  for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
    PlainContext plain;
    at::Tensor start = anchor();
    backward({embedding(start, tokens, weight, nullptr, plain.context)}, {d}, {start});
  }
  return weight.gradient();
}

/// fp32 gradients take this project's loop, others ATen's operations.
TEST(Embedding, WordsOfOtherRanksAddNothingAndARankMayHaveNone) {
  const int64_t vocab_size = 13, ranks = 6;  // the last one has no token, the one before it has one
  const at::Tensor tokens = integers({3, 17}, vocab_size, 5);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor d = normal({51, 9}, 2, type);
    at::Tensor expected = at::zeros({vocab_size, 9}, at::kDouble);
    expected.index_add_(0, tokens.flatten(), 2 * as_double(d));
    for (at::ScalarType gradient_type : {at::kFloat, at::kDouble}) {
      std::vector<at::Tensor> shards;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        shards.push_back(shard_gradient(normal({vocab_size, 9}, 1, type), ranks, rank, tokens, d, gradient_type));
      }
      EXPECT_EQ(shards.back().size(0), 0);
      EXPECT_TRUE(near(at::cat(shards), expected, tolerance(at::kFloat)));
    }
  }
}

TEST(Embedding, GradientsHaveTheSameBitsInEveryRunAndForEveryNumberOfThreads) {
  const at::Tensor tokens = integers({4, 256}, 7, 5);  // every token more than a hundred times
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor d = normal({1024, 515}, 2, type);
    const auto gradient = [&](int threads) {
      const ThreadCount count(threads);
      return shard_gradient(normal({7, 515}, 1, type), 1, 0, tokens, d, at::kFloat);
    };
    const at::Tensor alone = gradient(1);
    EXPECT_TRUE(same_bits(alone, gradient(1)));
    EXPECT_TRUE(same_bits(alone, gradient(2)));
    EXPECT_TRUE(same_bits(alone, gradient(5)));
  }
}

TEST(Embedding, NoMicrobatchAllocatesAnythingOfTheVocabularysSize) {
  auto weight = live_parameter("tok_embeddings", normal({100'000, 16}, 1, at::kBFloat16));
  const at::Tensor d = normal({8, 16}, 3, at::kBFloat16);
  for (const char* microbatch : {"first", "second"}) {
    PlainContext plain;
    at::Tensor start = anchor();
    const at::Tensor rows = embedding(start, integers({1, 8}, 100'000, 2), *weight, nullptr, plain.context);
    EXPECT_LE(peak_allocation([&] { backward({rows}, {d}, {start}); }).tensors, 4096)
        << microbatch << "; the table's gradient is 6.4 MB";
  }
}

}  // namespace
}  // namespace titan
