#include "titan/kernels/exact_sum.h"

#include <cuda_runtime.h>

#include "titan/kernels/exact_sum_device.h"
#include "titan/kernels/launch.h"

namespace titan {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // several on each multiprocessor; each stays for many tiles

__global__ void exact_carry_kernel(int64_t* slots) { exact_carry(slots); }

__global__ void exact_value_kernel(const int64_t* slots, double* value) { *value = exact_value(slots); }

}  // namespace

void launch_exact_squares(const float* values, int64_t count, int64_t* slots, CUstream_st* stream) {
  if (count == 0) return;
  const int64_t per_block = kThreads / 32 * kExactTile;
  const int64_t wanted = (count + per_block - 1) / per_block;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  exact_squares_kernel<<<blocks, kThreads, 0, stream>>>(values, count, reinterpret_cast<unsigned long long*>(slots));
  check_launch("exact_squares");
}

void launch_exact_carry(int64_t* slots, CUstream_st* stream) {
  exact_carry_kernel<<<1, 1, 0, stream>>>(slots);
  check_launch("exact_carry");
}

void launch_exact_value(const int64_t* slots, double* value, CUstream_st* stream) {
  exact_value_kernel<<<1, 1, 0, stream>>>(slots, value);
  check_launch("exact_value");
}

}  // namespace titan
