#include "titan/ops/attention_kernel.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

namespace titan {
namespace {

using Kernel = AttentionKernel;

std::vector<KernelTiming> timings(double cudnn, double flash, double efficient) {
  return time_kernels([&](Kernel kernel) {
    const double seconds = kernel == Kernel::cudnn ? cudnn : kernel == Kernel::flash ? flash : efficient;
    TORCH_CHECK(seconds > 0, "No kernel for head_dim 7\nsecond line");
    return seconds;
  });
}

TEST(AttentionKernel, StaysWithCudnnUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(choose_kernel(timings(1.0, 0.95, 2.0)), Kernel::cudnn);
  EXPECT_EQ(choose_kernel(timings(1.0, 0.89, 2.0)), Kernel::flash);
  EXPECT_EQ(choose_kernel(timings(1.0, 0.89, 0.5)), Kernel::efficient);
}

TEST(AttentionKernel, LeavesOutWhatRefusesTheShape) {
  const std::vector<KernelTiming> measured = timings(0, 1.0, 2.0);
  EXPECT_EQ(choose_kernel(measured), Kernel::flash);
  EXPECT_EQ(measured[0].refusal, "No kernel for head_dim 7");
  EXPECT_EQ(choose_kernel(timings(0, 0, 0)), std::nullopt);
}

TEST(AttentionKernel, IsDescribedBesideTheOthers) {
  EXPECT_EQ(describe_choice(Kernel::flash, timings(0, 0.002, 0.005)),
            "Attention by flash: 2.00 ms forward and backward; cuDNN does not take the shape, memory-efficient takes "
            "2.50 times as long");
}

TEST(AttentionKernel, OfAGpuIsMeasured) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a GPU";
  const AttentionShape shape{1, 1024, 8, 2, 64};
  const auto measure = [&](Kernel kernel) {
    return measure_kernel(kernel, shape, at::kBFloat16, at::Device(at::kCUDA, 0));
  };
  EXPECT_TRUE(choose_kernel(time_kernels(measure)).has_value());
}

}  // namespace
}  // namespace titan
