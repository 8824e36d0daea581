#include "titan/optimize/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

struct Gradients {
  explicit Gradients(const std::vector<at::Tensor>& gradients) {
    for (const at::Tensor& gradient : gradients) {
      ParameterSpec spec{"p" + std::to_string(owned.size()), gradient.sizes().vec(), {}};
      owned.push_back(std::make_unique<Parameter>(spec));
      owned.back()->gradient_shard = gradient;
      all.push_back(owned.back().get());
    }
  }
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> all;
};

Gradients some_gradients() {
  return Gradients({normal({257, 129}, 1), normal({1}, 2), normal({200003}, 3), at::empty({0})});
}

at::Tensor loss(double value = 1.0) { return at::scalar_tensor(value, at::kDouble); }

TEST(GradientNorm, IsTheFloat64NormOverAllParameters) {
  const Gradients gradients = some_gradients();
  double squares = 0;
  for (Parameter* parameter : gradients.all)
    squares += as_double(parameter->gradient_shard).square().sum().item<double>();
  const StepControl control = control_step(gradients.all, 0, loss());
  EXPECT_NEAR(control.norm.item<double>(), std::sqrt(squares), 1e-12 * std::sqrt(squares));
  EXPECT_EQ(control.clip.item<float>(), 1.0f);
  EXPECT_EQ(control.skip.item<float>(), 0.0f);
}

TEST(GradientNorm, HasTheSameBitsForOneAndTwoThreads) {
  const Gradients gradients = some_gradients();
  std::vector<at::Tensor> norms;
  for (int threads : {1, 2}) {
    const ThreadCount count(threads);
    norms.push_back(control_step(gradients.all, 1.0, loss()).norm);
  }
  EXPECT_TRUE(same_bits(norms[0], norms[1]));
}

TEST(GradientNorm, DoesNotOverflowWhereFp32SquaresWould) {
  const Gradients gradients({at::full({100}, 1e30f)});
  const StepControl control = control_step(gradients.all, 0, loss());
  EXPECT_NEAR(control.norm.item<double>() / 1e31, 1.0, 1e-6);
  EXPECT_EQ(control.skip.item<float>(), 0.0f);
}

TEST(GradientNorm, ClipsToTheBoundOnlyWhenTheNormExceedsIt) {
  const Gradients gradients({at::tensor({3.0f, 4.0f})});
  EXPECT_FLOAT_EQ(control_step(gradients.all, 1.0, loss()).clip.item<float>(), static_cast<float>(1.0 / (5.0 + 1e-6)));
  EXPECT_EQ(control_step(gradients.all, 5.1, loss()).clip.item<float>(), 1.0f);
  EXPECT_EQ(control_step(gradients.all, 0.0, loss()).clip.item<float>(), 1.0f);
}

TEST(GradientNorm, SkipsWhenAGradientOrTheLossIsNotFinite) {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    const Gradients gradients({at::tensor({1.0f, bad}), at::tensor({1.0f})});
    EXPECT_EQ(control_step(gradients.all, 1.0, loss()).skip.item<float>(), 1.0f) << bad;
    const Gradients fine({at::tensor({1.0f})});
    EXPECT_EQ(control_step(fine.all, 1.0, loss(bad)).skip.item<float>(), 1.0f) << bad;
  }
}

TEST(GradientNorm, OfNothingIsZero) {
  const StepControl control = control_step({}, 1.0, loss());
  EXPECT_EQ(control.norm.item<double>(), 0.0);
  EXPECT_EQ(control.clip.item<float>(), 1.0f);
}

TEST(GradientNorm, AParameterWhoseGradientWasNotReducedIsABug) {
  Gradients gradients({at::ones({2})});
  gradients.all[0]->gradient_shard.reset();
  EXPECT_THROW(control_step(gradients.all, 1.0, loss()), InvariantError);
}

TEST(SumOfSquares, IsExactForSmallIntegersWhateverTheTail) {
  for (int64_t count : {0, 1, 31, 32, 33, 32768, 32769, 100000}) {
    EXPECT_EQ(sum_of_squares(at::full({count}, 3.0f)), 9.0 * static_cast<double>(count)) << count;
  }
}

}  // namespace
}  // namespace titan
