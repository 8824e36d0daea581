// Weights copied from the host and gradients copied to it, on a device that works asynchronously: a GPU, or the mock of
// one (tests/behaviour/mock_gpu_test.py), which copies but does not compute. So units record the weights that they see
// and write numbers as gradients, all by copies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/model.h"
#include "titan/gpu/cuda.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

/// Memory of the host that a device can copy to and from without being waited for.
at::Tensor host_memory(const at::Tensor& like) {
  return at::empty(like.sizes(), at::TensorOptions(like.scalar_type()).pinned_memory(!like.is_cpu()));
}

constexpr int64_t kDim = 24;  // of small_request

class NumberingRunner : public UnitRunner {
 public:
  explicit NumberingRunner(std::map<std::string, std::vector<Parameter*>> parameters_of_unit)
      : parameters_(std::move(parameters_of_unit)) {}

  HiddenStates forward(Unit& unit, const HiddenStates&, const BatchContext& batch, UnitState&) override {
    see_weights(unit);
    if (unit.name() == "head") return {at::empty({}, batch.tokens.options().dtype(at::kDouble))};
    return {at::empty({batch.tokens.numel(), kDim}, batch.tokens.options().dtype(at::kFloat))};
  }
  HiddenStates backward(Unit& unit, const HiddenStates& gradients, const BatchContext&, UnitState&) override {
    if (unit.name() != "tok_embeddings") see_weights(unit);
    for (Parameter* parameter : parameters_.at(unit.name())) {
      hosts_.push_back(host_memory(parameter->gradient()).fill_(++number_));
      parameter->gradient().copy_(hosts_.back(), /*non_blocking=*/true);
      parameter->mark_gradient_written();
      written_[parameter] = number_;
    }
    return gradients;
  }

  /// After the host has waited.
  void expect_weights_as_their_masters() {
    EXPECT_FALSE(seen_.empty());
    for (auto& [parameter, seen] : seen_) EXPECT_TRUE(same_bits(seen, parameter->master)) << parameter->name();
    seen_.clear();
  }
  float written(const Parameter* parameter) const { return written_.at(parameter); }

 private:
  void see_weights(const Unit& unit) {
    for (Parameter* parameter : parameters_.at(unit.name())) {
      // What other ranks, who are imaginary, have of it is nothing.
      const at::Tensor own = parameter->weight().narrow(0, parameter->shard_box().offset[0], parameter->master.size(0));
      seen_.emplace_back(parameter, host_memory(own));
      seen_.back().second.copy_(own, /*non_blocking=*/true);
    }
  }

  std::map<std::string, std::vector<Parameter*>> parameters_;
  std::map<const Parameter*, float> written_;
  float number_ = 0;
  std::vector<at::Tensor> hosts_;  // live until the device has read them
  std::vector<std::pair<Parameter*, at::Tensor>> seen_;
};

struct Layout {
  int64_t ranks = 1, replicas = 1, microbatches = 1;
};

class OffloadedGradients : public ::testing::TestWithParam<std::tuple<at::DeviceType, Layout>> {
 protected:
  OffloadedGradients() {
    const auto& [type, layout] = GetParam();
    device_ = at::Device(type, static_cast<c10::DeviceIndex>(type == at::kCUDA ? 0 : -1));
    if (type == at::kCUDA && !has_gpu()) return;
    ModelRequest request = small_request();
    request.model.override_sizes.n_layers = 5;
    const ModelFamily& family = *find_model_family(request.model.name);
    PlanRequest plan_request = small_plan();
    plan_request.sequence_length = request.sequence_length;
    plan_request.training.enable_cpu_offload = true;
    plan_request.accumulation = layout.microbatches;
    plan_request.place = {DeviceMesh({1, layout.replicas, layout.ranks, 1, 1}, layout.replicas * layout.ranks), 0};
    const Plan plan = make_plan(describe_model(request), plan_request);
    auto host_offload = std::make_shared<HostOffload>(std::make_shared<MemoryArena>(at::Device(at::kCPU)),
                                                      std::make_shared<MemoryArena>(device_));
    auto slots = std::make_shared<SlotPool>(plan, host_offload->device());
    MeshCommunicators communicators;
    if (layout.ranks > 1) {
      communicators.gather = make_fake_communicator("fsdp_gather", 0, layout.ranks);
      communicators.scatter = make_fake_communicator("fsdp_scatter", 0, layout.ranks);
    }
    if (layout.replicas > 1) communicators.replicate = make_fake_communicator("dp_replicate", 0, layout.replicas);
    model_ = family.build(request, {});
    model_->prepare(device_);
    WeightStores weights;
    std::map<std::string, std::vector<Parameter*>> parameters_of_unit;
    for (const WeightGroupPlan& group : plan.groups) {
      std::vector<Parameter*> members;
      for (const ParameterPlan& planned : group.parameters) members.push_back(&model_->parameter(planned.spec.name));
      weights.push_back(
          std::make_unique<WeightStore>(group, members, plan.request, host_offload, slots, communicators));
      std::vector<Parameter*>& of_unit = parameters_of_unit[plan.units[group.reduce_after].name];
      of_unit.insert(of_unit.end(), members.begin(), members.end());
      parameters_.insert(parameters_.end(), members.begin(), members.end());
    }
    for (Parameter* parameter : parameters_) initialise(*parameter, parameter->shard_box(), 11);
    auto runner = std::make_unique<NumberingRunner>(std::move(parameters_of_unit));
    runner_ = runner.get();
    ExecutorOptions options;
    options.weight_offload = host_offload;
    executor_ =
        std::make_unique<Executor>(plan, model_->chain(), std::move(weights), std::move(runner), std::move(options));
  }

  at::Device device_{at::kCPU};
  std::unique_ptr<Model> model_;
  std::vector<Parameter*> parameters_;
  NumberingRunner* runner_ = nullptr;
  std::unique_ptr<Executor> executor_;
};

TEST_P(OffloadedGradients, AreThoseOfTheirBlockAndStepWhenTheHostHasWaited) {
  if (!executor_) GTEST_SKIP() << "there is no CUDA device here";
  BatchContext batch;
  batch.tokens = at::zeros({2, 13}, at::TensorOptions(device_).dtype(at::kLong));
  batch.labels = batch.tokens;
  const int64_t microbatches = std::get<1>(GetParam()).microbatches;
  for (int step = 0; step < 3; ++step) {
    for (int64_t a = 0; a < microbatches; ++a) {
      forward(*executor_, batch, 0);
      backward(*executor_, batch, 0, /*is_last=*/a + 1 == microbatches);
    }
    for (const Parameter* parameter : parameters_) ASSERT_FALSE(parameter->gradient_shard.defined());
    wait_host(*executor_, device_);
    runner_->expect_weights_as_their_masters();
    for (Parameter* parameter : parameters_) {
      const at::Tensor& gradient = parameter->gradient_shard;
      EXPECT_TRUE(same_bits(gradient, at::full_like(gradient, runner_->written(parameter)))) << parameter->name();
      parameter->master.add_(1);
    }
    executor_->weights_changed();
    executor_->zero_gradient();
  }
}

std::string case_name(const ::testing::TestParamInfo<OffloadedGradients::ParamType>& info) {
  const auto& [type, layout] = info.param;
  return fmt::format("{}_{}ranks_{}replicas_{}microbatches", type == at::kCUDA ? "Gpu" : "Cpu", layout.ranks,
                     layout.replicas, layout.microbatches);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OffloadedGradients,
    ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA),
                       ::testing::Values(Layout{}, Layout{.microbatches = 2}, Layout{.replicas = 2}, Layout{.ranks = 2},
                                         Layout{.ranks = 2, .replicas = 2}, Layout{.ranks = 3, .microbatches = 2})),
    case_name);

}  // namespace
}  // namespace titan
