#include "titan/optimize/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/exact_reference.h"
#include "support/model.h"
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

TEST(GradientNorm, IsTheRoundedRootOfTheExactSum) {
  for (int i = 0; i < 2000; ++i) {
    const Gradients gradients({normal({3}, i)});
    const at::Tensor squares = local_squares(gradients.all, at::kCPU);
    const double norm = control_from(squares, 0, loss()).norm.item<double>();
    ASSERT_EQ(norm, std::sqrt(exact_value_of(squares).item<double>())) << i;
  }
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

/// `full` in `ranks` uneven pieces of dim 0, some perhaps empty; as a rank's gradient shards.
Gradients shards_of(const std::vector<at::Tensor>& full, int64_t rank, int64_t ranks) {
  std::vector<at::Tensor> shards;
  for (const at::Tensor& tensor : full) {
    const int64_t rows = (tensor.size(0) + ranks - 1) / ranks;
    const int64_t begin = std::min(rank * rows, tensor.size(0));
    shards.push_back(tensor.narrow(0, begin, std::min(rows, tensor.size(0) - begin)));
  }
  return Gradients(shards);
}

TEST(GradientNorm, HasTheSameBitsHoweverManyRanksTheGradientsAreCutInto) {
  const std::vector<at::Tensor> full{normal({257, 129}, 1), normal({1}, 2), normal({200003}, 3, at::kFloat, 1e-3)};
  const StepControl alone = control_step(Gradients(full).all, 1.0, loss());
  for (int64_t ranks : {2, 3, 4, 8}) {
    at::Tensor sum = local_squares({}, at::kCPU);
    for (int64_t rank = ranks; rank-- > 0;) sum.add_(local_squares(shards_of(full, rank, ranks).all, at::kCPU));
    const StepControl together = control_from(sum, 1.0, loss());
    EXPECT_TRUE(same_bits(together.norm, alone.norm)) << ranks;
    EXPECT_TRUE(same_bits(together.clip, alone.clip)) << ranks;
  }
}

TEST(GradientNorm, OneRanksBadValueSkipsTheStepOfAll) {
  at::Tensor sum = local_squares(Gradients({at::ones({3})}).all, at::kCPU);
  sum.add_(local_squares(Gradients({at::tensor({1.0f, -INFINITY})}).all, at::kCPU));
  const StepControl control = control_from(sum, 1.0, loss());
  EXPECT_EQ(control.norm.item<double>(), INFINITY);
  EXPECT_EQ(control.skip.item<float>(), 1.0f);
}

TEST(GradientNorm, OfAModelIsTheRootOfTheExactSumOverItsGradients) {
  SmallModel small(small_request());
  forward(*small.executor, small.batch(), 0);
  backward(*small.executor, small.batch(), 0, /*is_last=*/true);
  std::vector<Parameter*> parameters;
  BigSum sum;
  for (const auto& parameter : small.model->parameter_handles()) {
    parameters.push_back(parameter.get());
    const at::Tensor& gradient = parameter->gradient_shard;
    for (int64_t i = 0; i < gradient.numel(); ++i) sum.add_square(gradient.const_data_ptr<float>()[i]);
  }
  ASSERT_GT(sum.rounded(), 0);
  EXPECT_EQ(control_step(parameters, 0, loss()).norm.item<double>(), std::sqrt(sum.rounded()));
  std::reverse(parameters.begin(), parameters.end());
  EXPECT_EQ(control_step(parameters, 0, loss()).norm.item<double>(), std::sqrt(sum.rounded()));
}

}  // namespace
}  // namespace titan
