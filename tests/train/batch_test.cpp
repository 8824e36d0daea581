#include "titan/train/batch.h"

#include <gtest/gtest.h>

#include "support/tensors.h"

namespace titan {
namespace {

/// Two samples of three tokens; the second sample begins a document at its last position.
MicroBatch a_microbatch() {
  MicroBatch batch;
  batch.samples = 2;
  batch.sequence_length = 3;
  batch.tokens = {1, 2, 3, 4, 5, 6};
  batch.labels = {2, 3, 4, 5, kIgnoredLabel, 7};
  batch.positions = {0, 1, 2, 0, 1, 0};
  batch.document_bounds = {{0}, {0, 2}};
  return batch;
}

at::Tensor matrix(std::vector<int64_t> values) { return at::tensor(values, at::kLong).view({2, 3}); }

TEST(ToDevice, TokensAndLabelsLieRowByRowAndTheScaleIsHandedOn) {
  const BatchContext context = to_device(a_microbatch(), 0.25, /*block_causal=*/false, at::kCPU);
  EXPECT_TRUE(same_bits(context.tokens, matrix({1, 2, 3, 4, 5, 6})));
  EXPECT_TRUE(same_bits(context.labels, matrix({2, 3, 4, 5, kIgnoredLabel, 7})));
  EXPECT_EQ(context.loss_scale, 0.25);
}

MicroBatch eight_places() {
  MicroBatch batch;
  batch.samples = 2;
  batch.sequence_length = 8;
  for (int64_t i = 0; i < 16; ++i) {
    batch.tokens.push_back(i);
    batch.labels.push_back(100 + i);
    batch.positions.push_back(i % 8 < 3 ? i % 8 : i % 8 - 3);
  }
  batch.document_bounds = {{0, 3}, {0, 3}};
  return batch;
}

TEST(ToDevice, ARankOfASplitReadsItsPlacesOfEverySampleAndKnowsWhereTheyAre) {
  const SequenceShare second{{2}, 1};  // of four chunks the second and the third
  const BatchContext context = to_device(eight_places(), 1, /*block_causal=*/false, at::kCPU, second);
  EXPECT_TRUE(same_bits(context.tokens, at::tensor({2, 3, 4, 5, 10, 11, 12, 13}, at::kLong).view({2, 4})));
  EXPECT_TRUE(same_bits(context.labels, context.tokens + 100));
  EXPECT_TRUE(same_bits(context.positions, at::tensor({2, 3, 4, 5}, at::kLong).view({1, 4})));
  const SequenceShare first{{2}, 0};
  EXPECT_TRUE(same_bits(to_device(eight_places(), 1, false, at::kCPU, first).positions,
                        at::tensor({0, 1, 6, 7}, at::kLong).view({1, 4})));
  const SequenceShare tail{{2, LoadBalance::none}, 1};
  EXPECT_TRUE(same_bits(to_device(eight_places(), 1, false, at::kCPU, tail).tokens,
                        at::tensor({4, 5, 6, 7, 12, 13, 14, 15}, at::kLong).view({2, 4})));
}

TEST(ToDevice, ARankOfASplitHasItsPositionsInDocumentsAndTheBoundsOfWholeSamples) {
  const SequenceShare first{{2}, 0};
  const BatchContext context = to_device(eight_places(), 1, /*block_causal=*/true, at::kCPU, first);
  EXPECT_TRUE(same_bits(context.positions, at::tensor({0, 1, 3, 4, 0, 1, 3, 4}, at::kLong).view({2, 4})));
  EXPECT_EQ(context.bounds.document_starts, (std::vector<DocumentStarts>{{0, 3}, {0, 3}}));
}

TEST(ToDevice, OnlyBlockCausalAttentionIsToldPositionsAndDocumentBounds) {
  const BatchContext causal = to_device(a_microbatch(), 1, /*block_causal=*/false, at::kCPU);
  EXPECT_FALSE(causal.positions.defined());
  EXPECT_TRUE(causal.bounds.document_starts.empty());
  const BatchContext block = to_device(a_microbatch(), 1, /*block_causal=*/true, at::kCPU);
  EXPECT_TRUE(same_bits(block.positions, matrix({0, 1, 2, 0, 1, 0})));
  ASSERT_EQ(block.bounds.document_starts.size(), 2u);
  EXPECT_EQ(std::vector<int64_t>(block.bounds.document_starts[1].begin(), block.bounds.document_starts[1].end()),
            (std::vector<int64_t>{0, 2}));
}

TEST(ToDevice, EveryMicrobatchOfAStepHasTheScaleOfTheWholeGlobalBatch) {
  StepBatch step;
  step.microbatches = {a_microbatch(), a_microbatch(), a_microbatch()};
  step.valid_tokens = 15;
  const std::vector<BatchContext> contexts = to_device(step, false, at::kCPU);
  ASSERT_EQ(contexts.size(), 3u);
  for (const BatchContext& context : contexts) EXPECT_EQ(context.loss_scale, 1.0 / 15);
}

TEST(ToDevice, AStepWithoutAnyValidTokenHasAFiniteScale) {
  StepBatch step;
  step.microbatches = {a_microbatch()};
  step.valid_tokens = 0;
  EXPECT_EQ(to_device(step, false, at::kCPU)[0].loss_scale, 1.0);
}

TEST(ToDevice, TheTensorsAreCopiesThatOutliveTheBatch) {
  MicroBatch batch = a_microbatch();
  const BatchContext context = to_device(batch, 1, false, at::kCPU);
  batch.tokens.assign(6, 99);
  EXPECT_EQ(context.tokens.max().item<int64_t>(), 6);
}

TEST(ValidTokens, OfARankAreThoseOfItsOwnPlaces) {
  StepBatch batch;
  batch.microbatches = {a_microbatch()};
  EXPECT_EQ(valid_tokens_of(batch, {}), 5);
  batch.microbatches = {eight_places(), eight_places()};
  batch.microbatches[1].labels[2] = kIgnoredLabel;  // of the second rank
  EXPECT_EQ(valid_tokens_of(batch, {{2}, 0}), 16);
  EXPECT_EQ(valid_tokens_of(batch, {{2}, 1}), 15);
}

}  // namespace
}  // namespace titan
