// Moments that live on the host and come to the device to be stepped: the same bits, the bytes that the plan says.
#include <gtest/gtest.h>

#include "support/optimizer_options.h"
#include "support/tensors.h"
#include "titan/optimize/adam.h"

namespace titan {
namespace {

struct Weights {
  Weights() {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{40, 3}, {7}, {64, 5}, {1}}) {
      owned.push_back(std::make_unique<Parameter>(ParameterSpec{"p" + std::to_string(owned.size()), shape, {}}));
      owned.back()->master = normal(shape, owned.size());
      all.push_back(owned.back().get());
    }
  }
  StepControl draw(int64_t step, bool skip) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->gradient_shard = normal(all[i]->spec().shape, 100 * static_cast<uint64_t>(step) + i);
    }
    const at::TensorOptions scalar(at::kDouble);
    return {at::ones({}, scalar), at::ones({}, scalar), at::full({}, skip ? 1 : 0, at::kFloat)};
  }

  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> all;
};

OptimizerSection options_in(at::ScalarType dtype) {
  return with_states(dtype == at::kBFloat16 ? ElementType::bfloat16 : ElementType::float32);
}

class OffloadedMoments : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(OffloadedMoments, ChangeNoBitAndCrossOnceEachWayInAStep) {
  const std::vector<ParameterGroup> groups{{"", 1, 1, {0, 1, 2, 3}}};
  const auto host_offload =
      std::make_shared<HostOffload>(std::make_shared<MemoryArena>(at::kCPU), std::make_shared<MemoryArena>(at::kCPU));
  Weights near, far;
  AdamOptimizer here(near.all, groups, options_in(GetParam())),
      away(far.all, groups, options_in(GetParam()), 0, host_offload);
  for (int64_t step = 1; step <= 3; ++step) {
    host_offload->reset();
    here.step(step, 0.01, near.draw(step, step == 2));
    away.step(step, 0.01, far.draw(step, step == 2));
    EXPECT_EQ(host_offload->to_device_bytes(), step == 2 ? 0 : away.state_bytes());
    EXPECT_EQ(host_offload->to_host_bytes(), step == 2 ? 0 : away.state_bytes());
  }
  for (size_t i = 0; i < near.all.size(); ++i) {
    EXPECT_TRUE(same_bits(near.all[i]->master, far.all[i]->master));
    EXPECT_TRUE(same_bits(here.first_moment(i), away.first_moment(i)));
    EXPECT_TRUE(same_bits(here.second_moment(i), away.second_moment(i)));
  }
  EXPECT_EQ(host_offload->host().held_bytes(), away.state_bytes());
  EXPECT_EQ(host_offload->device().held_bytes(), 0);
  // One parameter's go home, one's are stepped, one's come: the first three are larger than the last three.
  EXPECT_EQ(host_offload->device().peak_bytes(),
            (40 * 3 + 7 + 64 * 5) * 2 * static_cast<int64_t>(c10::elementSize(GetParam())));
}

TEST_P(OffloadedMoments, OfAGroupAloneCrossAlone) {
  const auto host_offload =
      std::make_shared<HostOffload>(std::make_shared<MemoryArena>(at::kCPU), std::make_shared<MemoryArena>(at::kCPU));
  Weights weights;
  AdamOptimizer optimizer(weights.all, {{"", 1, 1, {0, 1, 2, 3}}}, options_in(GetParam()), 0, host_offload);
  const StepControl control = weights.draw(1, false);
  optimizer.step_some(std::span(weights.all).subspan(1, 1), 1, 0.01, control);
  EXPECT_EQ(host_offload->to_device_bytes(), 7 * 2 * static_cast<int64_t>(c10::elementSize(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Optimizer, OffloadedMoments, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace titan
