// Host memory: pinned blocks no larger than asked for, and activations that are on the host between forward and
// backward.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/model.h"
#include "support/selections.h"
#include "titan/parallel/host_offload.h"

namespace titan {
namespace {

/// Ordinary memory that counts.
struct Counted {
  static inline size_t bytes = 0;
  static inline int blocks = 0;

  static PinnedMemory::Source source() {
    bytes = 0, blocks = 0;
    return {[](size_t size) {
              bytes += size;
              ++blocks;
              return std::malloc(size);
            },
            [](void* block) {
              --blocks;
              std::free(block);
            }};
  }
};

TEST(PinnedMemory, IsAskedForNoMoreThanWhatItHolds) {
  MemoryArena host(at::kCPU, Counted::source());
  const at::Tensor tensor = host.allocate(1025, at::kFloat, /*pinned=*/true);
  tensor.fill_(1);
  EXPECT_EQ(tensor.numel(), 1025);
  EXPECT_EQ(Counted::bytes, 1025 * sizeof(float));
  EXPECT_EQ(host.held_bytes(), static_cast<int64_t>(Counted::bytes));
}

TEST(PinnedMemory, ThatWasGivenBackServesTheNextOfItsSize) {
  MemoryArena host(at::kCPU, Counted::source());
  at::Tensor first = host.allocate(100, at::kFloat, true);
  const void* block = first.const_data_ptr();
  const at::Tensor beside = host.allocate(100, at::kFloat, true);
  EXPECT_NE(beside.const_data_ptr(), block);
  first.reset();
  EXPECT_NE(host.allocate(99, at::kFloat, true).const_data_ptr(), block);
  EXPECT_EQ(host.allocate(200, at::kBFloat16, true).const_data_ptr(), block);
  EXPECT_EQ(Counted::blocks, 3);
  EXPECT_EQ(host.held_bytes(), 400);
}

TEST(PinnedMemory, LivesAsLongAsItsLastTensor) {
  auto host = std::make_unique<MemoryArena>(at::kCPU, Counted::source());
  at::Tensor kept = host->allocate(7, at::kFloat, true), gone = host->allocate(8, at::kFloat, true);
  EXPECT_EQ(host->allocate(0, at::kFloat, true).numel(), 0);
  gone.reset();
  host.reset();
  EXPECT_EQ(Counted::blocks, 2);
  kept.fill_(1);
  kept.reset();
  EXPECT_EQ(Counted::blocks, 0);
}

std::shared_ptr<HostOffload> two_arenas() {
  return std::make_shared<HostOffload>(std::make_shared<MemoryArena>(at::kCPU),
                                       std::make_shared<MemoryArena>(at::kCPU));
}

TEST(HostOffload, ReturnsNumbersToTheHostWithoutCountingThem) {
  const std::shared_ptr<HostOffload> offload = two_arenas();
  const at::Tensor number = normal({}, 1), gradient = normal({5}, 2), on_host = at::zeros_like(gradient);
  offload->to_host(on_host, gradient);
  EXPECT_TRUE(same_bits(offload->wait_to_host({number})[0], number));
  EXPECT_TRUE(same_bits(on_host, gradient));
  EXPECT_EQ(offload->to_host_bytes(), 5 * 4);
}

/// A small model whose checkpointed units keep their activations on the host, and one whose units do not.
struct Pair {
  explicit Pair(const RecomputeSelection& selection, ElementType compute = ElementType::float32)
      : host_offload(two_arenas()),
        here(small_request(), request(selection, compute, false)),
        away(small_request(), request(selection, compute, true),
             {.count_saved_bytes = true, .check_kept_tensors = true, .activation_offload = host_offload}) {}

  static PlanRequest request(const RecomputeSelection& selection, ElementType compute, bool offload) {
    PlanRequest plan = small_plan();
    plan.recompute = selection;
    plan.training.mixed_precision_param = compute;
    plan.offload_activations = offload;
    return plan;
  }
  int64_t planned() const {
    int64_t bytes = 0;
    for (const UnitPlan& unit : away.plan.units) bytes += unit.offloaded ? unit.saved_bytes : 0;
    return bytes;
  }

  std::shared_ptr<HostOffload> host_offload;
  SmallModel here, away;
};

class ActivationsOnTheHost : public ::testing::TestWithParam<NamedSelection> {};

TEST_P(ActivationsOnTheHost, GiveTheSameBitsAndCrossAsPlanned) {
  for (const ElementType compute : {ElementType::float32, ElementType::bfloat16}) {
    Pair pair(GetParam().selection, compute);
    const at::Tensor loss = forward(*pair.here.executor, pair.here.batch(), 0);
    EXPECT_TRUE(same_bits(forward(*pair.away.executor, pair.away.batch(), 0), loss));
    EXPECT_EQ(pair.host_offload->to_host_bytes(), pair.planned());
    EXPECT_EQ(pair.host_offload->host().held_bytes(), pair.planned()) << "and there they are";
    EXPECT_EQ(pair.host_offload->device().held_bytes(), 0);
    for (size_t u = 0; u < pair.away.plan.units.size(); ++u) {
      const UnitPlan& unit = pair.away.plan.units[u];
      EXPECT_EQ(pair.away.executor->saved_bytes(u, 0), unit.offloaded ? 0 : unit.saved_bytes) << unit.name;
    }
    for (SmallModel* model : {&pair.here, &pair.away}) backward(*model->executor, model->batch(), 0, /*is_last=*/true);
    EXPECT_EQ(pair.host_offload->to_device_bytes(), pair.planned());
    EXPECT_EQ(pair.away.plan.activation_offload_bytes, pair.planned());
    EXPECT_EQ(pair.host_offload->host().held_bytes() + pair.host_offload->device().held_bytes(), 0) << "nothing stays";
    for (const auto& parameter : pair.here.model->parameter_handles()) {
      EXPECT_TRUE(same_bits(pair.away.model->parameter(parameter->name()).gradient_shard, parameter->gradient_shard))
          << parameter->name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, ActivationsOnTheHost, ::testing::ValuesIn(all_selections()));

TEST(ActivationsOnTheHost, TakeAtMostTwoUnitsOfTheDevice) {
  Pair pair(selection(RecomputeSelection::Mode::full));
  forward(*pair.away.executor, pair.away.batch(), 0);
  backward(*pair.away.executor, pair.away.batch(), 0, true);
  const int64_t unit = pair.away.plan.units[1].saved_bytes;
  EXPECT_EQ(pair.host_offload->device().peak_bytes(), 2 * unit) << "one that is read and one that comes";
  const std::map<std::string, int64_t> memory = memory_of(pair.away.plan);
  EXPECT_EQ(memory.at("activations being copied"), 2 * unit);
  EXPECT_EQ(memory.at("activations on the host"), pair.host_offload->host().peak_bytes());
  for (const MemoryPurpose& purpose : pair.away.plan.memory) {
    EXPECT_EQ(purpose.on_host, purpose.name == "activations on the host") << purpose.name;
  }
}

TEST(ActivationsOnTheHost, AreGoneFromTheDeviceBeforeAnyComeBack) {
  ActivationOffload offload(two_arenas());
  at::Tensor tensor = normal({6, 4}, 1);
  const auto original = tensor.storage().getWeakStorageImpl();
  OffloadedTensors away = offload.offload({&tensor});
  EXPECT_FALSE(original.expired()) << "a copy under way reads it";
  offload.fetch(away);
  EXPECT_TRUE(original.expired());
}

TEST(ActivationsOnTheHost, OfSeveralMicrobatchesWaitSideBySide) {
  Pair pair(selection(RecomputeSelection::Mode::full));
  for (const int64_t m : {0, 1}) forward(*pair.away.executor, pair.away.batch(), m);
  EXPECT_EQ(pair.host_offload->host().held_bytes(), 2 * pair.planned());
  backward(*pair.away.executor, pair.away.batch(), 0, false);
  EXPECT_EQ(pair.host_offload->host().held_bytes(), pair.planned());
  backward(*pair.away.executor, pair.away.batch(), 1, true);
  EXPECT_EQ(pair.host_offload->host().held_bytes(), 0);
}

TEST(ActivationsOnTheHost, ComeBackWithTheirShapesAndWhatTheyShared) {
  ActivationOffload offload(two_arenas());
  const at::Tensor whole = normal({6, 4}, 1);
  at::Tensor rows = whole.narrow(0, 2, 3), turned = whole.t(), leaf = normal({5}, 2, at::kBFloat16), nothing;
  leaf.set_requires_grad(true);
  const at::Tensor expected_rows = rows.clone(), expected_turned = turned.clone(),
                   expected_leaf = leaf.detach().clone();
  OffloadedTensors away = offload.offload({&rows, &turned, &leaf, &nothing});
  EXPECT_FALSE(rows.defined() || turned.defined() || leaf.defined());
  EXPECT_EQ(away.blocks.size(), 2u) << "a storage crosses once";
  offload.fetch(away);
  offload.wait_fetch(away, {&rows, &turned, &leaf, &nothing});
  EXPECT_TRUE(same_bits(rows.clone(), expected_rows));
  EXPECT_TRUE(same_bits(turned.contiguous(), expected_turned.contiguous()));
  EXPECT_TRUE(same_bits(leaf.detach(), expected_leaf));
  EXPECT_TRUE(leaf.requires_grad() && leaf.is_leaf() && !rows.requires_grad());
  EXPECT_EQ(turned.strides(), whole.t().strides());
  EXPECT_TRUE(rows.is_alias_of(turned));
  EXPECT_FALSE(nothing.defined());
}

}  // namespace

}  // namespace titan
