// What the tests of kernels rest on: that the host finds what a GPU may do silently.
#include "support/cuda_on_host.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

using cuda_on_host::Buffer;
using cuda_on_host::KernelError;

void run_block(unsigned threads, const std::function<void()>& body) { cuda_on_host::run_grid({1}, {threads}, body); }

std::string refusal(unsigned threads, const std::function<void()>& body) {
  try {
    run_block(threads, body);
  } catch (const KernelError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaOnHost, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> seen(2 * 3 * 5 * 4 * 3 * 2, 0);
  cuda_on_host::run_grid({2, 3, 5}, {4, 3, 2}, [&] {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    ++seen[block * 24 + thread];
  });
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(CudaOnHost, ShufflesHandOverBetweenAllLanes) {
  std::vector<unsigned> xored(64), broadcast(64);
  run_block(64, [&] {
    xored[threadIdx.x] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 5u);
    broadcast[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 7u);
  });
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(xored[i], i ^ 5u);
    EXPECT_EQ(broadcast[i], i / 32 * 32 + 7);
  }
}

TEST(CudaOnHost, ASharedElementNeedsABarrierBetweenWriterAndReader) {
  cuda_on_host::Shared<unsigned> numbers(64, "numbers");
  const auto pass_on = [&](bool with_barrier) {
    return [&, with_barrier] {
      numbers[threadIdx.x] = threadIdx.x;
      if (with_barrier) __syncthreads();
      EXPECT_EQ(numbers[(threadIdx.x + 32) % 64], (threadIdx.x + 32) % 64);
    };
  };
  EXPECT_EQ(refusal(64, pass_on(true)), "");
  EXPECT_NE(refusal(64, pass_on(false)).find("shared numbers"), std::string::npos);
}

TEST(CudaOnHost, ASharedElementNeedsABarrierBetweenReaderAndNextWriter) {
  cuda_on_host::Shared<unsigned> word(1, "word");
  const auto twice = [&](bool with_barrier) {
    return [&, with_barrier] {
      for (unsigned round = 0; round < 2; ++round) {
        if (threadIdx.x == 0) word[0] = round;
        __syncthreads();
        EXPECT_EQ(word[0], round);
        if (with_barrier) __syncthreads();
      }
    };
  };
  EXPECT_EQ(refusal(96, twice(true)), "");
  EXPECT_NE(refusal(96, twice(false)), "");
}

TEST(CudaOnHost, AWarpMayPassSharedElementsOnBehindASynchronisationOfTheWarp) {
  cuda_on_host::Shared<unsigned> numbers(32, "numbers");
  const auto pass_on = [&](bool synchronise) {
    return [&, synchronise] {
      numbers[threadIdx.x] = threadIdx.x;
      if (synchronise) __syncwarp();
      (void)static_cast<unsigned>(numbers[threadIdx.x ^ 1]);
    };
  };
  EXPECT_EQ(refusal(32, pass_on(true)), "");
  EXPECT_NE(refusal(32, pass_on(false)), "");
}

TEST(CudaOnHost, AtomicsOnSharedElementsMeetWithoutABarrierButNothingElseDoes) {
  cuda_on_host::Shared<unsigned> sum(1, "sum");
  const auto add = [&](bool with_barrier) {
    return [&, with_barrier] {
      if (threadIdx.x == 0) sum[0] = 0;
      __syncthreads();
      sum[0].add(threadIdx.x);
      if (with_barrier) __syncthreads();
      if (threadIdx.x == 63) {
        EXPECT_EQ(sum[0], 63u * 32);
      }
    };
  };
  EXPECT_EQ(refusal(64, add(true)), "");
  EXPECT_NE(refusal(64, add(false)), "");
}

TEST(CudaOnHost, WhatNobodyWroteInThisBlockIsNotThere) {
  cuda_on_host::Shared<unsigned> numbers(4, "numbers");
  EXPECT_EQ(refusal(1, [&] { numbers[2] = 1; }), "");
  EXPECT_NE(refusal(1, [&] { (void)static_cast<unsigned>(numbers[2]); }).find("before anything is written"),
            std::string::npos);
  EXPECT_NE(refusal(1, [&] { numbers[4] = 1; }).find("outside of shared"), std::string::npos);
}

TEST(CudaOnHost, ThreadsThatMissABarrierOrWaitAtAnotherAreAnError) {
  EXPECT_NE(refusal(64,
                    [] {
                      if (threadIdx.x < 40) __syncthreads();
                    }),
            "");
  EXPECT_NE(refusal(64,
                    [] {
                      if (threadIdx.x < 32) {
                        __syncthreads();
                      } else {
                        __syncthreads();
                      }
                    })
                .find("different barriers"),
            std::string::npos);
  EXPECT_NE(refusal(32,
                    [] {
                      if (threadIdx.x < 31) (void)__shfl_xor_sync(0xffffffffu, 1, 1u);
                    }),
            "");
  EXPECT_NE(refusal(40, [] { (void)__shfl_xor_sync(0xffffffffu, 1, 1u); }), "") << "half a warp";
  EXPECT_EQ(refusal(64, [] { __syncthreads(); }), "") << "an error must not outlive its launch";
}

TEST(CudaOnHost, AccessesBesideTheBuffersOrAskewAreErrors) {
  Buffer<float> numbers(std::vector<float>(8, 1));
  EXPECT_EQ(refusal(1, [&] { cuda_on_host::note(numbers.data() + 4, 16, false); }), "");
  EXPECT_NE(refusal(1, [&] { cuda_on_host::note(numbers.data() + 8, 4, false); }).find("reads outside"),
            std::string::npos);
  EXPECT_NE(refusal(1, [&] { cuda_on_host::note(numbers.data() - 1, 4, true); }).find("writes outside"),
            std::string::npos);
  EXPECT_NE(refusal(1, [&] { cuda_on_host::note(numbers.data() + 1, 16, false); }).find("not aligned"),
            std::string::npos);
}

TEST(CudaOnHost, CountsBytesOncePerLaunchAndRepetitionsApart) {
  Buffer<float> numbers(std::vector<float>(8, 1));
  cuda_on_host::reset_counted();
  const auto touch = [&] {
    cuda_on_host::note(numbers.data(), 16, false);
    cuda_on_host::note(numbers.data() + 2, 4, false);
    cuda_on_host::note(numbers.data() + 4, 4, true);
    cuda_on_host::note_word(numbers.data() + 7, 4);
    cuda_on_host::note_word(numbers.data() + 7, 4);
  };
  run_block(1, touch);
  run_block(1, touch);
  const cuda_on_host::Counted counted = cuda_on_host::counted();
  EXPECT_EQ(counted.read, 40);
  EXPECT_EQ(counted.reread, 8);
  EXPECT_EQ(counted.written, 8);
  EXPECT_EQ(counted.rewritten, 0);
}

TEST(CudaOnHost, GuardsTellOfWritesThatNothingAnnounced) {
#ifndef __SANITIZE_ADDRESS__
  Buffer<float> numbers(std::vector<float>(8, 1));
  EXPECT_TRUE(numbers.guards_intact());
  volatile float* beside = numbers.data() + 8;
  *beside = 1;
  EXPECT_FALSE(numbers.guards_intact());
#else
  GTEST_SKIP() << "AddressSanitizer ends the program there";
#endif
}

}  // namespace
}  // namespace titan
