#include "titan/optimize/neighbours.h"

#include <gtest/gtest.h>

#include "support/tensors.h"
#include "titan/optimize/gradient_norm.h"

namespace titan {
namespace {

TEST(Neighbours, AreJoinedInTheOrderOfMemoryWhateverTheOrderTheyAreNamedIn) {
  const at::Tensor block = normal({60}, 1);
  const std::vector<at::Tensor> parts{block.narrow(0, 50, 10), block.narrow(0, 0, 20).view({4, 5}),
                                      block.narrow(0, 20, 30).view({5, 6})};
  const std::vector<at::Tensor> runs = joined(parts);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_TRUE(same_bits(runs[0], block));
  EXPECT_EQ(runs[0].const_data_ptr(), block.const_data_ptr()) << "nothing is copied";
}

TEST(Neighbours, AreNotJoinedOverAGapNorFromOneBlockToAnotherNorWhereTheyAreNotContiguous) {
  const at::Tensor block = normal({60}, 1), other = normal({8}, 2);
  EXPECT_EQ(joined({block.narrow(0, 0, 20), block.narrow(0, 21, 10)}).size(), 2u);
  EXPECT_EQ(joined({block, other}).size(), 2u);
  EXPECT_EQ(joined({block.narrow(0, 0, 20).view({4, 5}).t(), block.narrow(0, 20, 10)}).size(), 2u);
  EXPECT_EQ(joined({block.narrow(0, 0, 20), block.narrow(0, 5, 20)}).size(), 2u) << "what overlaps counts twice";
}

TEST(Neighbours, WithoutNumbersAreLeftOut) {
  const at::Tensor block = normal({60}, 1);
  const std::vector<at::Tensor> runs =
      joined({block.narrow(0, 0, 20), at::empty({0}), block.narrow(0, 20, 0), block.narrow(0, 20, 40)});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].numel(), 60);
  EXPECT_TRUE(joined({}).empty());
}

TEST(Neighbours, SumToTheSameBitsAsByThemselves) {
  const at::Tensor block = normal({100'003}, 1);
  const std::vector<at::Tensor> parts{block.narrow(0, 0, 7), block.narrow(0, 7, 60'000),
                                      block.narrow(0, 60'007, 39'996)};
  EXPECT_TRUE(same_bits(exact_squares(joined(parts), at::kCPU), exact_squares(parts, at::kCPU)));
}

}  // namespace
}  // namespace titan
