#include "titan/kernels/normal_numbers.h"

#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// Any number of whole warps works: the kernel runs once for each weight.
constexpr int kThreads = 256;

// One thread per element: weights are initialised once per run, and the fp64 arithmetic takes longer than the writes.
template <class T>
__global__ void __launch_bounds__(kThreads) normal_fill_kernel(NormalFill a) {
  const int64_t element = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= a.count) return;
  const auto value = static_cast<float>(normal_number(a.of, a.place.index(element)));
  store_one(static_cast<T*>(a.values) + element, narrow<T>(value));
}

}  // namespace

void run(const NormalFill& a, CUstream_st* stream) {
  if (a.count == 0) return;
  with_type(a.type, [&](auto number) {
    launch("normal_fill", normal_fill_kernel<decltype(number)>, dim3(blocks_for(a.count, kThreads)), dim3(kThreads),
           stream, a);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
