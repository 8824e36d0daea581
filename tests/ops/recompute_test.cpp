#include "titan/ops/recompute.h"

#include <gtest/gtest.h>

#include "support/tensors.h"
#include "titan/ops/unit_context.h"

namespace titan {
namespace {

RecomputePolicy keeps(ResultKind kind, std::initializer_list<int> ordinals) {
  RecomputePolicy policy = RecomputePolicy::full();
  for (int ordinal : ordinals) policy.set(kind, ordinal, Keep::keep);
  return policy;
}

/// Counts how often a result is computed.
struct Counted {
  at::Tensor operator()() const {
    ++*times;
    return value.clone();
  }
  at::Tensor value = normal({3, 4}, 1);
  std::shared_ptr<int> times = std::make_shared<int>(0);
};

TEST(Recorder, AKeptResultIsComputedOnceAndHandedOutInTheReplay) {
  Recorder recorder(keeps(ResultKind::linear, {0}));
  const Counted compute;
  recorder.start(Recorder::Phase::first_run);
  const at::Tensor first = recorder.once(ResultKind::linear, 0, compute);
  EXPECT_EQ(recorder.kept().size(), 1u);
  recorder.start(Recorder::Phase::replay);
  const at::Tensor again = recorder.once(ResultKind::linear, 0, compute);
  EXPECT_EQ(*compute.times, 1);
  EXPECT_TRUE(again.is_alias_of(first));
  EXPECT_FALSE(again.requires_grad());
  EXPECT_TRUE(recorder.kept().empty()) << "what was handed out is no longer held";
}

TEST(Recorder, WhatThePolicyDoesNotNameIsComputedAgain) {
  Recorder recorder(keeps(ResultKind::linear, {1}));
  const Counted compute;
  recorder.start(Recorder::Phase::first_run);
  recorder.once(ResultKind::linear, 0, compute);
  recorder.once(ResultKind::norm, 1, compute);
  recorder.start(Recorder::Phase::replay);
  recorder.once(ResultKind::linear, 0, compute);
  EXPECT_EQ(*compute.times, 3);
  EXPECT_TRUE(recorder.kept().empty());
}

TEST(Recorder, SwitchedOffItOnlyComputes) {
  Recorder recorder(keeps(ResultKind::linear, {0}));
  const Counted compute;
  recorder.once(ResultKind::linear, 0, compute);
  recorder.once(ResultKind::linear, 0, compute);
  EXPECT_EQ(*compute.times, 2);
  EXPECT_TRUE(recorder.kept().empty());
  EXPECT_FALSE(recorder.keeps(ResultKind::linear, 0));
}

TEST(Recorder, ATupleMayHoldResultsThatAreUndefined) {
  Recorder recorder(keeps(ResultKind::norm, {0}));
  auto compute = [] { return std::array<at::Tensor, 3>{normal({2}, 1), at::Tensor(), normal({3}, 2)}; };
  for (bool hashes : {false, true}) {
    recorder.set_hash_check(hashes);
    recorder.start(Recorder::Phase::first_run);
    recorder.once<3>(ResultKind::norm, 0, compute);
    recorder.start(Recorder::Phase::replay);
    const auto [a, none, b] = recorder.once<3>(ResultKind::norm, 0, compute);
    EXPECT_TRUE(same_bits(a, normal({2}, 1)));
    EXPECT_FALSE(none.defined());
    EXPECT_TRUE(same_bits(b, normal({3}, 2)));
  }
}

TEST(Recorder, AReplayThatAsksForAnotherResultFails) {
  const Counted compute;
  auto after_first_run = [&] {
    Recorder recorder(keeps(ResultKind::linear, {0, 1}).set(ResultKind::norm, 0, Keep::keep));
    recorder.start(Recorder::Phase::first_run);
    recorder.once(ResultKind::linear, 0, compute);
    recorder.start(Recorder::Phase::replay);
    return recorder;
  };
  EXPECT_THROW(after_first_run().once(ResultKind::linear, 1, compute), InvariantError) << "another ordinal";
  EXPECT_THROW(after_first_run().once(ResultKind::norm, 0, compute), InvariantError) << "another kind";
  auto pair = [&] { return std::array<at::Tensor, 2>{compute(), compute()}; };
  EXPECT_THROW(after_first_run().once<2>(ResultKind::linear, 0, pair), InvariantError) << "another tuple";
  Recorder recorder = after_first_run();
  recorder.once(ResultKind::linear, 0, compute);
  EXPECT_THROW(recorder.once(ResultKind::linear, 0, compute), InvariantError) << "more than was recorded";
}

TEST(Recorder, TheHashCheckFindsAKeptTensorThatWasWrittenTo) {
  Recorder recorder(keeps(ResultKind::linear, {0}));
  recorder.set_hash_check(true);
  const Counted compute;
  recorder.start(Recorder::Phase::first_run);
  at::Tensor result = recorder.once(ResultKind::linear, 0, compute);
  result.view({-1})[5] = 1.25;
  recorder.start(Recorder::Phase::replay);
  EXPECT_THROW(recorder.once(ResultKind::linear, 0, compute), InvariantError);
}

TEST(Recorder, PlaceholdersAreSkippedInTheReplayOnly) {
  Recorder recorder(RecomputePolicy::full().set(ResultKind::linear, 6, Keep::placeholder));
  recorder.start(Recorder::Phase::first_run);
  EXPECT_FALSE(recorder.skips(ResultKind::linear, 6));
  EXPECT_FALSE(recorder.keeps(ResultKind::linear, 6));
  recorder.start(Recorder::Phase::replay);
  EXPECT_TRUE(recorder.skips(ResultKind::linear, 6));
  EXPECT_FALSE(recorder.skips(ResultKind::linear, 5));
}

TEST(Recorder, APlaceholderHasAShapeButNoMemoryOfItsOwn) {
  const at::Tensor stand_in = placeholder({1024, 4096}, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(stand_in.sizes(), (std::vector<int64_t>{1024, 4096}));
  EXPECT_EQ(stand_in.scalar_type(), at::kBFloat16);
  EXPECT_EQ(stand_in.storage().nbytes(), 2u);
}

TEST(RecomputePolicy, AnOrdinalOutsideTheTableIsABug) {
  EXPECT_THROW(RecomputePolicy::full().set(ResultKind::linear, 16, Keep::keep), InvariantError);
  EXPECT_THROW(RecomputePolicy::full().set(ResultKind::linear, -1, Keep::keep), InvariantError);
}

TEST(SavedLedger, AStorageCountsOnceHoweverManyViewsOfItAreSaved) {
  SavedLedger ledger;
  const at::Tensor block = normal({4, 8}, 1);
  ledger.add(block);
  ledger.add(block.narrow(0, 1, 2));
  ledger.add(block.t());
  EXPECT_EQ(ledger.bytes(), 128);
  ledger.add(normal({3}, 2, at::kBFloat16));
  EXPECT_EQ(ledger.bytes(), 134);
  ledger.clear();
  EXPECT_EQ(ledger.bytes(), 0);
}

}  // namespace
}  // namespace titan
