// Blocks of pinned memory: no larger than asked for, and used again.
#include <gtest/gtest.h>

#include <cstdlib>

#include "titan/parallel/memory_arena.h"

namespace titan {
namespace {

/// Ordinary memory that counts.
struct Counted {
  static inline size_t bytes = 0;
  static inline int blocks = 0;

  static PinnedMemory::Source source() {
    bytes = 0, blocks = 0;
    return {[](size_t size) {
              bytes += size;
              ++blocks;
              return std::malloc(size);
            },
            [](void* block) {
              --blocks;
              std::free(block);
            }};
  }
};

TEST(PinnedMemory, IsAskedForNoMoreThanWhatItHolds) {
  MemoryArena host(at::kCPU, Counted::source());
  const at::Tensor tensor = host.allocate(1025, at::kFloat, /*pinned=*/true);
  tensor.fill_(1);
  EXPECT_EQ(tensor.numel(), 1025);
  EXPECT_EQ(Counted::bytes, 1025 * sizeof(float));
  EXPECT_EQ(host.held_bytes(), static_cast<int64_t>(Counted::bytes));
}

TEST(PinnedMemory, ThatWasGivenBackServesTheNextOfItsSize) {
  MemoryArena host(at::kCPU, Counted::source());
  at::Tensor first = host.allocate(100, at::kFloat, true);
  const void* block = first.const_data_ptr();
  const at::Tensor beside = host.allocate(100, at::kFloat, true);
  EXPECT_NE(beside.const_data_ptr(), block);
  first.reset();
  EXPECT_NE(host.allocate(99, at::kFloat, true).const_data_ptr(), block);
  EXPECT_EQ(host.allocate(200, at::kBFloat16, true).const_data_ptr(), block);
  EXPECT_EQ(Counted::blocks, 3);
  EXPECT_EQ(host.held_bytes(), 400);
}

TEST(PinnedMemory, LivesAsLongAsItsLastTensor) {
  auto host = std::make_unique<MemoryArena>(at::kCPU, Counted::source());
  at::Tensor kept = host->allocate(7, at::kFloat, true), gone = host->allocate(8, at::kFloat, true);
  EXPECT_EQ(host->allocate(0, at::kFloat, true).numel(), 0);
  gone.reset();
  host.reset();
  EXPECT_EQ(Counted::blocks, 2);
  kept.fill_(1);
  kept.reset();
  EXPECT_EQ(Counted::blocks, 0);
}

}  // namespace
}  // namespace titan
