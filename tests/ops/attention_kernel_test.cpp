#include "titan/gpu/cuda.h"
#include "titan/ops/attention.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>

#include "src/ops/attention_kernels.h"

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

TEST(AttentionKernel, KeepsAnErrorOfTheDeviceApartFromARefusal) {
  const auto fails = [](Kernel) -> double {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
  };
  const KernelTiming failed = time_kernel(Kernel::flash, fails);
  EXPECT_EQ(failed.refusal, "CUDA error: an illegal memory access");
  ASSERT_TRUE(failed.device_error);
  EXPECT_THROW(std::rethrow_exception(failed.device_error), c10::AcceleratorError);
  for (const KernelTiming& refused : timings(0, 0, 0)) EXPECT_FALSE(refused.device_error);
}

TEST(AttentionKernel, IsDescribedBesideTheOthers) {
  EXPECT_EQ(describe_choice(Kernel::flash, timings(0, 0.002, 0.005)),
            "Attention by flash: 2.00 ms forward and backward; cuDNN does not take the shape, memory-efficient takes "
            "2.50 times as long");
}

TEST(AttentionKernel, ForDocumentsOfAnyLengthMakesNoPlansForShapes) {
  EXPECT_EQ(preferred_for(/*documents=*/true, Kernel::cudnn), Kernel::flash);
  EXPECT_EQ(preferred_for(/*documents=*/true, Kernel::flash), Kernel::flash);
  EXPECT_EQ(preferred_for(/*documents=*/false, Kernel::cudnn), Kernel::cudnn);
}

TEST(AttentionKernel, LeavesALogSumExpOfItsOwnShape) {
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(log_sum_exp_shape(Kernel::flash, 1, 4, 33, false), (Shape{1, 4, 33}));
  EXPECT_EQ(log_sum_exp_shape(Kernel::cudnn, 2, 4, 33, true), (Shape{2, 4, 33, 1}));
  EXPECT_EQ(log_sum_exp_shape(Kernel::cudnn, 2, 4, 33, false), (Shape{2, 4, 33}));
  EXPECT_EQ(log_sum_exp_shape(Kernel::efficient, 1, 4, 33, false), (Shape{1, 4, 64}));
  EXPECT_EQ(log_sum_exp_shape(Kernel::efficient, 1, 4, 64, false), (Shape{1, 4, 64}));
}

TEST(AttentionKernel, OfAGpuLeavesTheShapesThatItsDocumentsAreCutInto) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  for (const Kernel kernel : {Kernel::cudnn, Kernel::flash, Kernel::efficient}) {
    const at::ScalarType type = kernel == Kernel::efficient ? at::kFloat : at::kBFloat16;
    const at::Tensor q = at::randn({1, 4, 33, 64}, options.dtype(type));
    const DenseAttention made = dense_attention(kernel, q, q, q, /*causal=*/true);
    const bool has_column = log_sum_exp_has_column(kernel, q.device());
    EXPECT_EQ(made.log_sum_exp.sizes(), at::IntArrayRef(log_sum_exp_shape(kernel, 1, 4, 33, has_column)))
        << name(kernel);
  }
}

TEST(AttentionKernel, OfAGpuIsMeasured) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const AttentionShape shape{1, 1024, 8, 2, 64};
  const auto measure = [&](Kernel kernel) {
    return measure_kernel(kernel, shape, at::kBFloat16, at::Device(at::kCUDA, 0));
  };
  EXPECT_TRUE(choose_kernel(time_kernels(measure)).has_value());
}

}  // namespace
}  // namespace titan
