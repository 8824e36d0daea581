#include "titan/ops/matrix_product.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/tensors.h"

namespace titan {
namespace {

struct Sizes {
  int64_t rows, inner, columns;
};

void PrintTo(const Sizes& s, std::ostream* out) { *out << s.rows << "x" << s.inner << "x" << s.columns; }

/// fp32, bf16 and fp64 take different libraries on a CPU.
class ProductInPlace : public ::testing::TestWithParam<std::tuple<Sizes, at::ScalarType>> {
 protected:
  ProductInPlace()
      : dy(normal({sizes.rows, sizes.inner}, 1, type).to(device)),
        weight(normal({sizes.inner, sizes.columns}, 2, type).to(device)),
        exact(as_double(dy).mm(as_double(weight))) {}

  Sizes sizes = std::get<0>(GetParam());
  at::ScalarType type = std::get<1>(GetParam());
  at::Device device = at::hasCUDA() ? at::kCUDA : at::kCPU;
  at::Tensor dy, weight, exact;
};

TEST_P(ProductInPlace, OverwritesWhatWasThereAndNothingBesideIt) {
  const at::Tensor whole = at::full({sizes.rows + 4, sizes.columns}, NAN, dy.options());
  at::Tensor target = whole.narrow(0, 2, sizes.rows);
  product_into(target, dy, weight, /*accumulate=*/false);
  EXPECT_TRUE(near(target, exact, tolerance(type)));
  EXPECT_EQ(target.const_data_ptr(), whole.narrow(0, 2, sizes.rows).const_data_ptr());
  EXPECT_EQ(whole.isnan().sum().item<int64_t>(), 4 * sizes.columns);
}

TEST_P(ProductInPlace, AddsNoLessExactlyThanTheSumOfTwoRoundedProducts) {
  const at::Tensor dy2 = normal({sizes.rows, sizes.inner}, 3, type).to(device);
  at::Tensor target = product(dy2, weight);
  const at::Tensor rounded_twice = target + product(dy, weight);
  const at::Tensor wanted = exact + as_double(dy2).mm(as_double(weight));
  product_into(target, dy, weight, /*accumulate=*/true);
  EXPECT_TRUE(near(target, wanted, tolerance(type)));
  if (type == at::kDouble || target.numel() < 500) return;  // no better reference; chance decides between few roundings
  EXPECT_LE(distance(target, wanted), 1.05 * distance(rounded_twice, wanted));
}

INSTANTIATE_TEST_SUITE_P(Products, ProductInPlace,
                         ::testing::Combine(::testing::Values(Sizes{5, 7, 3}, Sizes{64, 32, 128}, Sizes{31, 300, 17},
                                                              Sizes{1, 1, 1}),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble)));

TEST(ProductInPlaceOfNoRows, OfNothingSummedIsZeroAndAddsNothing) {
  at::Tensor target = at::full({3, 4}, NAN);
  const at::Tensor dy = at::empty({3, 0}), weight = at::empty({0, 4});
  product_into(target, dy, weight, /*accumulate=*/false);
  EXPECT_TRUE(same_bits(target, at::zeros({3, 4})));
  target.fill_(2);
  product_into(target, dy, weight, /*accumulate=*/true);
  EXPECT_TRUE(same_bits(target, at::full({3, 4}, 2.0f)));
}

}  // namespace
}  // namespace titan
