// Weights quantised in blocks: every box of every size gives number · factor of its block, and what does not fit is
// said.
#include "titan/checkpoint/tensor_source.h"

#include <gtest/gtest.h>

#include "memory_source.h"
#include "states.h"

namespace titan {
namespace {

constexpr ScaleBlock kBlock{4, 3};
constexpr int64_t kRows = 11, kColumns = 7;  // blocks 3 × 3, those at the edges smaller

std::map<std::string, at::Tensor> stored() {
  return {{"w", normal({kRows, kColumns}, 1).to(at::kFloat8_e4m3fn)},
          {"w_scale_inv", normal({3, 3}, 2)},
          {"norm", normal({kColumns}, 3)}};
}

/// Element by element, in float64.
at::Tensor expected() {
  const std::map<std::string, at::Tensor> parts = stored();
  const at::Tensor numbers = parts.at("w").to(at::kFloat).to(at::kDouble);
  const at::Tensor factors = parts.at("w_scale_inv").to(at::kDouble);
  at::Tensor result = at::empty({kRows, kColumns}, at::kDouble);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      result[row][column] = numbers[row][column] * factors[row / kBlock.rows][column / kBlock.columns];
    }
  }
  return result;
}

std::string refusal_of(std::map<std::string, at::Tensor> tensors) {
  MemorySource source(std::move(tensors));
  try {
    BlockScaledWeights(source, kBlock);
  } catch (const DamageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BlockScaledWeights, EveryBoxHoldsTheNumbersTimesTheFactorsOfTheirBlocks) {
  MemorySource source(stored());
  BlockScaledWeights weights(source, kBlock);
  const at::Tensor whole = expected();
  for (int64_t top = 0; top < kRows; ++top) {
    for (int64_t left = 0; left < kColumns; ++left) {
      for (const auto& [height, width] : {std::pair<int64_t, int64_t>{1, 1}, {kRows - top, kColumns - left}, {2, 3}}) {
        if (top + height > kRows || left + width > kColumns) continue;
        const at::Tensor into = at::full({height, width}, 77.0, at::kFloat);
        weights.read("w", {{top, left}, {height, width}}, into);
        const at::Tensor wanted = whole.narrow(0, top, height).narrow(1, left, width).to(at::kFloat);
        EXPECT_TRUE(into.allclose(wanted, 1e-6, 0)) << top << ", " << left << "\n" << into << wanted;
      }
    }
  }
}

TEST(BlockScaledWeights, FactorsAreNoTensorsAndAllElsePassesThrough) {
  MemorySource source(stored());
  BlockScaledWeights weights(source, kBlock);
  ASSERT_EQ(weights.tensors().size(), 2u);
  EXPECT_EQ(weights.tensors().at("w").type, at::kFloat);
  const at::Tensor norm = at::empty({2}, at::kFloat);
  weights.read("norm", {{3}, {2}}, norm);
  EXPECT_TRUE(norm.equal(stored().at("norm").narrow(0, 3, 2)));
}

TEST(BlockScaledWeights, FactorsThatAreMissingOrOfAnotherShapeAreSaid) {
  std::map<std::string, at::Tensor> tensors = stored();
  tensors.erase("w_scale_inv");
  EXPECT_EQ(refusal_of(tensors), "memory: w is quantised, and there is no w_scale_inv");
  tensors["w_scale_inv"] = normal({3, 2}, 2);
  EXPECT_EQ(refusal_of(tensors), "memory: w is quantised, and its w_scale_inv has shape [3, 2] instead of [3, 3]");
  tensors["w_scale_inv"] = at::ones({3, 3}, at::kInt);
  EXPECT_EQ(refusal_of(tensors), "memory: w is quantised, and its w_scale_inv is of int32");
  tensors = stored();
  tensors["w"] = tensors["w"].view({kRows * kColumns});
  EXPECT_EQ(refusal_of(tensors), "memory: w is quantised, and has no rows and columns to cut into blocks");
}

}  // namespace
}  // namespace titan
