#include "support/cuda_on_host.h"
// The kernel's header needs the names above.
#include "titan/kernels/exact_sum_device.h"

#include <gtest/gtest.h>

#include <array>

#include "support/exact_reference.h"

namespace titan {
namespace {

using Slots = std::array<int64_t, kExactSlots>;

Slots squares_of(const std::vector<float>& values, unsigned blocks, unsigned threads, uint64_t seed = 1) {
  std::array<unsigned long long, kExactSlots> raw{};
  cuda_on_host::launch(exact_squares_kernel, blocks, threads, seed, values.data(), static_cast<int64_t>(values.size()),
                       raw.data());
  Slots slots;
  for (int i = 0; i < kExactSlots; ++i) slots[i] = static_cast<int64_t>(raw[i]);
  exact_carry(slots.data());
  return slots;
}

TEST(ExactSquaresKernel, EqualsTheBigSumForEveryTail) {
  for (size_t count : {1, 31, 32, 33, 255, 256, 257, 2047, 4099}) {
    const std::vector<float> values = wide_numbers(count, count);
    EXPECT_EQ(exact_value(squares_of(values, 2, 64).data()), exact_reference(values)) << count;
  }
}

TEST(ExactSquaresKernel, HasTheSameLimbsWhateverTheGridAndTheOrderOfItsWarps) {
  const std::vector<float> values = wide_numbers(10007, 5);
  const Slots one = squares_of(values, 1, 32);
  EXPECT_EQ(exact_value(one.data()), exact_reference(values));
  for (uint64_t seed : {1, 2, 3}) {
    EXPECT_EQ(squares_of(values, 1, 256, seed), one);
    EXPECT_EQ(squares_of(values, 5, 96, seed), one);
    EXPECT_EQ(squares_of(values, 13, 128, seed), one);
  }
}

TEST(ExactSquaresKernel, CountsWhatIsNotFinite) {
  std::vector<float> values = wide_numbers(1000, 6);
  const Slots finite = squares_of(values, 3, 64);
  values.insert(values.begin() + 500, {INFINITY, NAN, -INFINITY, -NAN, INFINITY});
  const Slots slots = squares_of(values, 3, 64);
  EXPECT_EQ(slots[kExactInfinities], 3);
  EXPECT_EQ(slots[kExactNans], 2);
  EXPECT_TRUE(std::equal(finite.begin(), finite.begin() + kExactLimbs, slots.begin()));
}

// What the tests above rest on: that the host finds a missing barrier.

static __global__ void pass_on(unsigned* out, bool with_barrier) {
  __shared__ unsigned numbers[128];
  numbers[threadIdx.x] = 1000;
  __syncthreads();
  numbers[threadIdx.x] = threadIdx.x;
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = numbers[(threadIdx.x + 32) % 128];
}

static __global__ void part_ways() {
  if (threadIdx.x < 32) __syncthreads();
  if (threadIdx.x >= 32) __shfl_xor_sync(0xffffffffu, 1, 1);
  if (threadIdx.x == 40) __syncthreads();
  if (threadIdx.x > 40) __shfl_xor_sync(0xffffffffu, 1, 1);
}

TEST(CudaOnHost, AMissingBarrierShows) {
  std::array<unsigned, 128> expected, out;
  for (unsigned i = 0; i < 128; ++i) expected[i] = (i + 32) % 128;
  for (uint64_t seed : {1, 2, 3, 4}) {
    cuda_on_host::launch(pass_on, 1, 128, seed, out.data(), true);
    EXPECT_EQ(out, expected) << seed;
    cuda_on_host::launch(pass_on, 1, 128, seed, out.data(), false);
    EXPECT_NE(out, expected) << seed;
  }
}

TEST(CudaOnHost, ThreadsThatWaitForEachOtherInVainAreAnError) {
  EXPECT_THROW(cuda_on_host::launch(part_ways, 1, 64, 1), std::runtime_error);
}

}  // namespace
}  // namespace titan
