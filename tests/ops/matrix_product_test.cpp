#include "src/ops/matrix_product.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/allocations.h"
#include "support/tensors.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

struct ProductSizes {
  int64_t rows, inner, columns;
};

void PrintTo(const ProductSizes& s, std::ostream* out) { *out << s.rows << "x" << s.inner << "x" << s.columns; }

/// fp32, bf16 and fp64 take different libraries on a CPU.
class ProductInPlace : public ::testing::TestWithParam<std::tuple<ProductSizes, at::ScalarType>> {
 protected:
  ProductInPlace()
      : dy(normal({sizes.rows, sizes.inner}, 1, type).to(device)),
        weight(normal({sizes.inner, sizes.columns}, 2, type).to(device)),
        exact(as_double(dy).mm(as_double(weight))) {}

  ProductSizes sizes = std::get<0>(GetParam());
  at::ScalarType type = std::get<1>(GetParam());
  at::Device device = has_gpu() ? at::kCUDA : at::kCPU;
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
  if (type == at::kDouble || target.numel() < 500)
    return;  // no better reference; with few roundings, which is closer is random
  EXPECT_LE(distance(target, wanted), 1.05 * distance(rounded_twice, wanted));
}

INSTANTIATE_TEST_SUITE_P(Products, ProductInPlace,
                         ::testing::Combine(::testing::Values(ProductSizes{5, 7, 3}, ProductSizes{64, 32, 128},
                                                              ProductSizes{31, 300, 17}, ProductSizes{1, 1, 1}),
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

/// Odd sizes leave rests of vectors and of blocks; nine rows are too many for one pass.
TEST(ProductOfFewRows, IsExactAndARowIsTheSameAloneAsAmongOthers) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [depth, vocab_size] : {std::pair<int64_t, int64_t>{32, 64}, {67, 35}, {3, 1}, {1024, 333}}) {
      const at::Tensor weight = normal({vocab_size, depth}, 4, type);
      for (int64_t rows = 1; rows <= 9; ++rows) {
        const at::Tensor x = normal({rows, depth}, 5, type);
        const at::Tensor y = product_of_few_rows(x, weight);
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_TRUE(near(y, as_double(x).mm(as_double(weight).t()), tolerance(type))) << rows << " x " << depth;
        if (rows > 8 || type == at::kDouble) continue;
        for (int64_t row = 0; row < rows; ++row) {
          EXPECT_TRUE(same_bits(y.narrow(0, row, 1), product_of_few_rows(x.narrow(0, row, 1), weight))) << rows;
        }
      }
    }
  }
}

TEST(ProductOfFewRows, HasTheSameBitsOnAnyNumberOfThreads) {
  const at::Tensor weight = normal({1000, 512}, 6, at::kFloat), x = normal({3, 512}, 7, at::kFloat);
  const at::Tensor y = product_of_few_rows(x, weight);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = product_of_few_rows(x, weight);
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(y, alone));
}

TEST(PeakAllocation, CountsWhatLibrariesTakeAndGiveBackApartFromTensors) {
  const PeakBytes peak = peak_allocation([] {
    const at::Tensor held = at::empty({1000}, at::kByte);
    c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
    void* const scratch = allocator->raw_allocate(5000);
    const at::Tensor beside = at::empty({300}, at::kByte);
    allocator->raw_deallocate(scratch);
    const at::Tensor after = at::empty({4000}, at::kByte);
  });
  EXPECT_EQ(peak.tensors, 5300);
  EXPECT_EQ(peak.scratch, 5000);
}

TEST(PeakAllocation, HoldsNoMoreTensorsThanTheResultWhateverOneDnnPacks) {
  if (!at::globalContext().hasMKLDNN()) GTEST_SKIP() << "LibTorch was built without oneDNN";
  const ThreadCount one(1);
  // A convolution packs its operands on every x86 processor; a product in bf16 does where there are AVX-512 units.
  const at::Tensor image = normal({1, 16, 24, 24}, 1), kernel = normal({32, 16, 3, 3}, 2);
  const PeakBytes convolution = peak_allocation([&] {
    at::mkldnn_convolution(image, kernel, std::nullopt, {1, 1}, {1, 1}, {1, 1}, /*groups=*/1);
  });
  EXPECT_EQ(convolution.tensors, 32 * 24 * 24 * 4);
  for (const ProductSizes& s : {ProductSizes{384, 88, 64}, ProductSizes{384, 64, 176}, ProductSizes{31, 300, 17}}) {
    const at::Tensor x = normal({s.rows, s.inner}, 1, at::kBFloat16);
    const at::Tensor weight = normal({s.columns, s.inner}, 2, at::kBFloat16);
    const PeakBytes product = peak_allocation([&] { product_with_transposed(x, weight); });
    EXPECT_EQ(product.tensors, s.rows * s.columns * 2);
    EXPECT_LE(product.scratch, product_scratch(s.rows, s.inner, s.columns));
  }
}

}  // namespace
}  // namespace titan
