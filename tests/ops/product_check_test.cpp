#include "src/ops/product_check.h"

#include <gtest/gtest.h>

#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

struct Sizes {
  int64_t rows, depth, columns;
};
constexpr std::array<Sizes, 5> kSizes{{{64, 48, 96}, {1, 7, 3}, {513, 65, 257}, {5, 1024, 1}, {16, 5000, 16}}};

TEST(ProductCheck, AcceptsWhatLibrariesComputeInEveryDtypeAndLayout) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [rows, depth, columns] : kSizes) {
      const at::Tensor left = normal({rows, depth}, 1, type), right = normal({depth, columns}, 2, type);
      EXPECT_EQ(wrong_product(left.mm(right), left, right), "") << rows << " " << type;
      const at::Tensor turned = normal({columns, depth}, 3, type).t();
      EXPECT_EQ(wrong_product(left.mm(turned), left, turned), "") << rows << " " << type;
    }
  }
}

/// What a thread that never started leaves out: the first or last rows or columns, as zeros, NaN or old numbers.
TEST(ProductCheck, FindsRowsAndColumnsThatWereNeverWritten) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor left = normal({96, 256}, 1, type), right = normal({256, 80}, 2, type);
    const at::Tensor y = left.mm(right);
    for (const int64_t axis : {0, 1}) {
      for (const double left_over : {0.0, double(NAN), 3e-3, -1e30}) {
        for (const int64_t parts : {2, 4, 16}) {
          const int64_t length = y.size(axis) / parts;
          at::Tensor cut = y.clone();
          cut.narrow(axis, y.size(axis) - length, length).fill_(left_over);
          EXPECT_NE(wrong_product(cut, left, right), "") << type << " " << axis << " " << left_over << " " << parts;
        }
      }
    }
  }
}

TEST(ProductCheck, FindsASumThatLacksAPartOfTheDepth) {
  const at::Tensor left = normal({64, 512}, 1, at::kFloat), right = normal({512, 64}, 2, at::kFloat);
  const at::Tensor half = left.narrow(1, 0, 256).mm(right.narrow(0, 0, 256));
  EXPECT_NE(wrong_product(half, left, right), "");
}

TEST(ProductCheck, LeavesOperandsThatAreNotFiniteToOtherChecks) {
  at::Tensor left = normal({8, 8}, 1, at::kFloat);
  const at::Tensor right = normal({8, 8}, 2, at::kFloat);
  left[0][0] = INFINITY;
  EXPECT_EQ(wrong_product(left.mm(right), left, right), "");
}

TEST(ProductCheck, IsMadeOnceForAShapeAndEndsTheRunWithTheShapeAndTheElement) {
  const at::Tensor left = normal({11, 13}, 1, at::kFloat), right = normal({13, 17}, 2, at::kFloat);
  const at::Tensor none = at::zeros({11, 17});
  try {
    check_product_once(none, left, right);
    FAIL() << "a product of zeros was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::silent_corruption);
    EXPECT_NE(std::string(error.what()).find("[11, 13] · [13, 17] has 0 in row 0, column 0"), std::string::npos);
  }
  EXPECT_NO_THROW(check_product_once(none, left, right)) << "the same shape again";
}

}  // namespace
}  // namespace titan
