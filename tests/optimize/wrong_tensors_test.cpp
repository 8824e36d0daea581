// Functions of titan/optimize refuse wrong tensors at their entry.
#include "support/wrong_tensors.h"

#include "support/optimizer_options.h"
#include "titan/optimize/adam.h"
#include "titan/optimize/muon.h"
#include "titan/optimize/rounded_store.h"
#include "titan/optimize/spike_guard.h"

namespace titan {
namespace {

using test::bf16, test::elsewhere, test::fp32, test::fp64, test::int64;

/// An optimizer of one parameter [2, 3] with a gradient, and a step that is neither clipped nor skipped.
struct WrongFixture {
  WrongFixture() {
    parameter.master = fp32({2, 3});
    parameter.gradient_shard = fp32({2, 3});
  }

  void step() { AdamOptimizer({&parameter}, groups, optimizer_options()).step(1, 0.1, control); }

  Parameter parameter{{"layers.0.w", {2, 3}, {}}};
  std::vector<ParameterGroup> groups{{"", 1.0, 1.0, {0}}};
  StepControl control{fp64({}), at::ones({}, at::kDouble), fp32({})};
  SpikeGuard guard{4, 5.0, /*skips=*/true, at::kCPU};
};

using WrongCall = test::WrongCall<WrongFixture>;
using F = WrongFixture;

std::vector<WrongCall> calls_of_the_norm() {
  const auto squares = [] { return int64({kExactSlots}); };
  return {
      {"exact_squares", "fp64", [](F&) { exact_squares({fp64({3})}, at::kCPU); }, {"Double [3] on cpu"}},
      {"exact_squares", "another device", [](F&) { exact_squares({elsewhere({3})}, at::kCPU); }, {"meta", "cpu"}},
      {"exact_squares",
       "a transposed gradient",
       [](F&) {
         exact_squares({fp32({3, 4}).t()}, at::kCPU);
       },
       {"[4, 3]"}},
      {"exact_value_of", "a slot too few", [](F&) { exact_value_of(int64({kExactSlots - 1})); }, {"Long [21]", "22"}},
      {"control_from", "a loss in fp32", [=](F&) { control_from(squares(), 1, fp32({})); }, {"Float []"}},
      {"control_from", "two losses", [=](F&) { control_from(squares(), 1, fp64({2})); }, {"Double [2]"}},
      {"control_from",
       "a loss on another device",
       [=](F&) { control_from(squares(), 1, elsewhere({}, at::kDouble)); },
       {"meta", "cpu"}},
      {"judge", "a loss in fp32", [](F& f) { f.guard.judge(fp32({}), fp64({})); }, {"Float []", "Double []"}},
      {"judge", "two norms", [](F& f) { f.guard.judge(fp64({}), fp64({2})); }, {"Double [2]"}},
  };
}

std::vector<WrongCall> calls_of_the_optimizer() {
  return {
      {"zero_unless_skipped", "a flag in fp64", [](F&) { zero_unless_skipped({fp32({})}, fp64({})); }, {"Double []"}},
      {"zero_unless_skipped",
       "a slot in fp64",
       [](F&) {
         zero_unless_skipped({fp32({}), fp64({7})}, fp32({}));
       },
       {"Double [7]"}},
      {"zero_unless_skipped",
       "a slot on another device",
       [](F&) { zero_unless_skipped({elsewhere({7})}, fp32({})); },
       {"meta", "cpu"}},
      {"step",
       "a gradient of another shape",
       [](F& f) {
         f.parameter.gradient_shard = fp32({3, 2});
         f.step();
       },
       {"layers.0.w", "[3, 2]", "[2, 3]"}},
      {"step",
       "a gradient in fp64",
       [](F& f) {
         f.parameter.gradient_shard = fp64({2, 3});
         f.step();
       },
       {"layers.0.w", "Double"}},
      {"step",
       "a flag in fp64",
       [](F& f) {
         f.control.skip = fp64({});
         f.step();
       },
       {"Double []"}},
      {"step",
       "a clip factor for each row",
       [](F& f) {
         f.control.clip = fp64({2});
         f.step();
       },
       {"Double [2]"}},
      {"step_some",
       "no gradient",
       [](F& f) {
         f.parameter.gradient_shard.reset();
         std::vector<Parameter*> all{&f.parameter};
         AdamOptimizer({&f.parameter}, f.groups, optimizer_options()).step_some(all, 1, 0.1, f.control);
       },
       {"layers.0.w", "undefined"}},
      {"matrix_part",
       "of an optimizer without whole matrices",
       [](F& f) {
         AdamOptimizer({&f.parameter}, f.groups, optimizer_options()).matrix_part(f.parameter, 1, f.control);
       },
       {"layers.0.w"}},
      {"matrix_updates",
       "of an optimizer without whole matrices",
       [](F& f) {
         AdamOptimizer({&f.parameter}, f.groups, optimizer_options())
             .matrix_updates(std::vector<Parameter*>{&f.parameter}, std::vector<at::Tensor>{fp32({2, 3})});
       },
       {"layers.0.w"}},
      {"take_matrix_update",
       "of an optimizer without whole matrices",
       [](F& f) {
         AdamOptimizer({&f.parameter}, f.groups, optimizer_options()).take_matrix_update(f.parameter, fp32({2, 3}));
       },
       {"layers.0.w"}},
  };
}

std::vector<WrongCall> calls_of_muon() {
  const auto muon = [](const std::function<void(MuonOptimizer&, F&)>& call) {
    return [=](F& f) {
      MuonOptimizer optimizer({&f.parameter}, f.groups, {true}, optimizer_options());
      call(optimizer, f);
    };
  };
  return {
      {"matrix_part",
       "a gradient in fp64",
       muon([](MuonOptimizer& optimizer, F& f) {
         f.parameter.gradient_shard = fp64({2, 3});
         optimizer.matrix_part(f.parameter, 1, f.control);
       }),
       {"layers.0.w", "Double [2, 3]", "Float [2, 3]"}},
      {"matrix_updates",
       "a part of the matrix",
       muon([](MuonOptimizer& optimizer, F& f) {
         optimizer.matrix_updates(std::vector<Parameter*>{&f.parameter}, std::vector<at::Tensor>{fp32({1, 3})});
       }),
       {"layers.0.w", "[1, 3]", "[2, 3]"}},
      {"take_matrix_update",
       "a part of another rank",
       muon([](MuonOptimizer& optimizer, F& f) {
         optimizer.take_matrix_update(f.parameter, fp32({1, 3}));
       }),
       {"layers.0.w", "[1, 3]", "[2, 3]"}},
      {"orthogonalised", "a vector", [](F&) { orthogonalised(fp32({3}), {}); }, {"Float [3]"}},
      {"orthogonalised",
       "fp64",
       [](F&) {
         orthogonalised(fp64({2, 3}), {});
       },
       {"Double [2, 3]"}},
      {"largest_singular_value",
       "three dimensions",
       [](F&) {
         largest_singular_value(fp32({1, 2, 3}));
       },
       {"[1, 2, 3]"}},
      {"store_rounded",
       "a result of another shape",
       [](F& f) {
         store_rounded({f.parameter, 1, 1, KeptNumber::weight}, fp32({3}), bf16({2, 3}), f.control);
       },
       {"layers.0.w", "Float [3]", "BFloat16 [2, 3]"}},
      {"store_rounded",
       "a narrow result",
       [](F& f) {
         store_rounded({f.parameter, 1, 1, KeptNumber::weight}, bf16({2, 3}), bf16({2, 3}), f.control);
       },
       {"layers.0.w", "BFloat16 [2, 3]"}},
  };
}

class WrongTensorsOfOptimize : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfOptimize, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Norm, WrongTensorsOfOptimize, ::testing::ValuesIn(calls_of_the_norm()));
INSTANTIATE_TEST_SUITE_P(Optimizer, WrongTensorsOfOptimize, ::testing::ValuesIn(calls_of_the_optimizer()));
INSTANTIATE_TEST_SUITE_P(Muon, WrongTensorsOfOptimize, ::testing::ValuesIn(calls_of_muon()));

}  // namespace
}  // namespace titan
