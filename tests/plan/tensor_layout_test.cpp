#include "titan/plan/tensor_layout.h"

#include <gtest/gtest.h>

#include <map>

#include "support/random_sequence.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Every coordinate tuple of the layout's splits, in row-major order.
std::vector<std::vector<int64_t>> all_coordinates(const TensorLayout& layout) {
  std::vector<std::vector<int64_t>> tuples{{}};
  for (const Split& split : layout.splits()) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& tuple : tuples) {
      for (int64_t i = 0; i < split.parts; ++i) {
        longer.push_back(tuple);
        longer.back().push_back(i);
      }
    }
    tuples = std::move(longer);
  }
  return tuples;
}

/// How often each element of the logical tensor is owned, as a map from its index tuple.
std::map<std::vector<int64_t>, int> times_owned(const TensorLayout& layout) {
  std::map<std::vector<int64_t>, int> count;
  for (const auto& coordinates : all_coordinates(layout)) {
    if (!layout.owns(coordinates)) continue;
    const Box box = layout.box(coordinates);
    for (int64_t flat = 0; flat < box.numel(); ++flat) {
      std::vector<int64_t> index(box.extent.size());
      int64_t rest = flat;
      for (size_t d = index.size(); d-- > 0;) {
        index[d] = box.offset[d] + rest % box.extent[d];
        rest /= box.extent[d];
      }
      ++count[index];
    }
  }
  return count;
}

void expect_tiled_once(const TensorLayout& layout) {
  const auto count = times_owned(layout);
  EXPECT_EQ(static_cast<int64_t>(count.size()), layout.numel());
  for (const auto& [index, times] : count) {
    EXPECT_EQ(times, 1);
    for (size_t d = 0; d < index.size(); ++d) EXPECT_LT(index[d], layout.global_shape()[d]);
  }
}

TEST(TensorLayout, ChunksAreCeilSizedAndTheLastAreShortOrEmpty) {
  auto sizes = [](int64_t size, int64_t parts) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < parts; ++i) {
      const ChunkRange range = ceil_chunk(size, parts, i);
      result.push_back(range.end - range.begin);
    }
    return result;
  };
  EXPECT_EQ(sizes(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes(7, 4), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(sizes(5, 4), (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(sizes(2, 5), (std::vector<int64_t>{1, 1, 0, 0, 0}));
  EXPECT_EQ(sizes(0, 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ceil_chunk(5, 4, 3).begin, 5);
}

TEST(TensorLayout, WithoutSplitsTheOneRankHoldsAll) {
  const TensorLayout layout({3, 5});
  EXPECT_EQ(layout.first_box(), (Box{{0, 0}, {3, 5}}));
  EXPECT_EQ(layout.numel(), 15);
  EXPECT_TRUE(layout.owns({}));
}

TEST(TensorLayout, TensorParallelThenFsdpOnTheSameDimensionIsTensorParallelMajor) {
  const TensorLayout layout({8, 3}, {{"tp", 2, 0}, {"dp_shard", 2, 0}});
  EXPECT_EQ(layout.box(std::vector<int64_t>{0, 1}), (Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(layout.box(std::vector<int64_t>{1, 0}), (Box{{4, 0}, {2, 3}}));
  expect_tiled_once(layout);
}

TEST(TensorLayout, ARankBeyondTheRowsHoldsAnEmptyBoxInsideTheTensor) {
  const TensorLayout layout({3, 4}, {{"dp_shard", 5, 0}});
  const Box last = layout.box(std::vector<int64_t>{4});
  EXPECT_EQ(last.numel(), 0);
  EXPECT_EQ(last.offset[0], 3);
  expect_tiled_once(layout);
}

TEST(TensorLayout, ACopyIsOwnedByTheFirstRankOfItsAxisOnly) {
  const TensorLayout layout({4}, {{"dp_replicate", 2, std::nullopt}, {"dp_shard", 2, 0}});
  EXPECT_TRUE(layout.owns(std::vector<int64_t>{0, 1}));
  EXPECT_FALSE(layout.owns(std::vector<int64_t>{1, 1}));
  EXPECT_EQ(layout.box(std::vector<int64_t>{0, 1}), layout.box(std::vector<int64_t>{1, 1}));
  expect_tiled_once(layout);
}

TEST(TensorLayout, AnyShapeAndAnyNestingOfSplitsIsTiledExactlyOnce) {
  PhiloxSequence random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> shape;
    for (uint32_t d = 1 + random.below(3); d-- > 0;) shape.push_back(random.below(8));
    std::vector<Split> splits;
    for (uint32_t s = random.below(4); s-- > 0;) {
      Split split{"axis" + std::to_string(s), 1 + random.below(5), std::nullopt};
      if (random.below(4) != 0) split.dimension = random.below(static_cast<uint32_t>(shape.size()));
      splits.push_back(split);
    }
    SCOPED_TRACE(trial);
    expect_tiled_once(TensorLayout(shape, splits));
  }
}

TEST(TensorLayout, ASplitOfADimensionThatIsNotThereIsRefused) {
  EXPECT_THROW(TensorLayout({4}, {{"tp", 2, 1}}), InvariantError);
  EXPECT_THROW(TensorLayout({4}, {{"tp", 0, 0}}), InvariantError);
  EXPECT_THROW(TensorLayout({4}, {{"tp", 2, 0}}).box({}), InvariantError);
}

}  // namespace
}  // namespace titan
