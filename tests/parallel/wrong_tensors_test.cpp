// Functions of titan/parallel refuse wrong tensors at their entry.
#include "support/wrong_tensors.h"

#include "support/layout_row.h"
#include "support/model.h"
#include "titan/parallel/assembly.h"
#include "titan/parallel/matrix_exchange.h"
#include "titan/parallel/state_hash.h"

namespace titan {
namespace {

using test::bf16, test::elsewhere, test::fp32, test::int32, test::int64;

/// A small model whose step runs, memory on two sides, and matrices of which another rank has the other half.
struct WrongFixture {
  WrongFixture() : small(small_request()) {}

  BatchContext batch(const std::function<void(BatchContext&)>& change) const {
    BatchContext changed = small.batch();
    change(changed);
    return changed;
  }
  HostOffload offload() const {
    return {std::make_shared<MemoryArena>(at::kCPU), std::make_shared<MemoryArena>(at::kCPU)};
  }
  Parameter& norm() const { return small.model->parameter("norm.weight"); }

  SmallModel small;
};

/// The matrices of the first block, whose rows two ranks share.
struct Halves {
  Halves() {
    for (const WeightGroupPlan& group : plan.groups) {
      if (group.matrices.empty()) continue;
      const std::shared_ptr<Communicator> ranks = make_fake_communicator(group.matrix_communicator, 0, 2);
      exchange = std::make_unique<MatrixExchange>(plan, group, ranks);
      for (const size_t index : exchange->parameters()) {
        parts.push_back(fp32(group.parameters[index].shard.extent));
        shapes.push_back(group.parameters[index].spec.shape);
      }
      return;
    }
  }

  Plan plan = plan_of(changed_row("halves", [](LayoutRow& row) { row.shard = 2, row.whole_matrices = true; }), 0);
  std::unique_ptr<MatrixExchange> exchange;
  std::vector<at::Tensor> parts;
  std::vector<std::vector<int64_t>> shapes;
};

using WrongCall = test::WrongCall<WrongFixture>;
using F = WrongFixture;

std::vector<WrongCall> calls_of_the_executor() {
  const auto run = [](const std::function<void(BatchContext&)>& change) {
    return [=](F& f) { f.small.run(f.batch(change)); };
  };
  return {
      {"run",
       "tokens of int32",
       run([](BatchContext& b) {
         b.tokens = int32({2, 13});
       }),
       {"Int [2, 13]"}},
      {"run",
       "a label too few",
       run([](BatchContext& b) {
         b.labels = int64({2, 12});
       }),
       {"[2, 12]", "[2, 13]"}},
      {"run",
       "positions of three samples",
       run([](BatchContext& b) {
         b.positions = int64({3, 13});
       }),
       {"[3, 13]", "[2, 13]"}},
      {"run", "a scale in fp32", run([](BatchContext& b) { b.loss_scale_at = fp32({}); }), {"Float []"}},
      {"infer",
       "labels on another device",
       [](F& f) {
         f.small.executor->infer(f.batch([](BatchContext& b) {
           b.labels = elsewhere({2, 13}, at::kLong);
         }),
                                 UnitMode::evaluate);
       },
       {"meta"}},
      {"infer",
       "rows of logits in int32",
       [](F& f) {
         f.small.executor->infer(f.batch([](BatchContext& b) { b.logit_rows = int32({2}); }), UnitMode::logits);
       },
       {"Int [2]"}},
      {"backward",
       "a gradient of a unit that returned nothing",
       [](F& f) {
         ImmediateSink sink;
         UnitState state;
         state.context = std::make_unique<UnitContext>(UnitMode::train, RecomputePolicy::none(), sink);
         EagerRunner().backward(*f.small.model->chain()[1], {fp32({1})}, f.small.batch(), state);
       },
       {"0 1"}},
      {"check_hidden",
       "rows of another batch",
       [](F& f) {
         check_hidden({fp32({25, 24})}, f.small.plan.units[0].hands_on, 26, 0, "the block");
       },
       {"the block", "[25, 24]", "26"}},
      {"check_hidden",
       "a tensor too many",
       [](F& f) {
         check_hidden({fp32({26, 24}), fp32({26, 24})}, f.small.plan.units[0].hands_on, 26, 0, "the block");
       },
       {"the block", "2 1"}},
  };
}

std::vector<WrongCall> calls_of_whole_states() {
  return {
      {"states_of",
       "a transposed matrix",
       [](F&) {
         const at::Tensor tensor = fp32({2, 3}).t();
         states_of(std::span(&tensor, 1));
       },
       {"Float [3, 2]"}},
      {"states_of",
       "numbers of fp16",
       [](F&) {
         const at::Tensor tensor = fp32({3}).to(at::kHalf);
         states_of(std::span(&tensor, 1));
       },
       {"Half [3]"}},
      {"states_of",
       "numbers of eight bytes",
       [](F&) {
         const at::Tensor tensor = int64({3});
         states_of(std::span(&tensor, 1));
       },
       {"Long [3]"}},
      {"state_by_operations", "nothing", [](F&) { state_by_operations({}); }, {"undefined"}},
      {"state_by_operations", "numbers of eight bytes", [](F&) { state_by_operations(int64({3})); }, {"Long [3]"}},
      {"gather_logical",
       "a shard of another shape",
       [](F& f) { gather_logical(f.norm(), fp32({23}), nullptr, at::kCPU); },
       {"norm.weight", "[23]", "24"}},
      {"gather_logical",
       "no shard in a single process",
       [](F& f) { gather_logical(f.norm(), {}, nullptr, at::kCPU); },
       {"norm.weight", "undefined"}},
  };
}

std::vector<WrongCall> calls_of_offloading() {
  return {
      {"copy_async",
       "a target that it would be broadcast to",
       [](F&) {
         std::optional<c10::Stream> stream;
         copy_async(fp32({2, 3}), fp32({3}), stream);
       },
       {"Float [2, 3]", "Float [3]"}},
      {"to_device",
       "a target of another dtype",
       [](F& f) { f.offload().to_device(bf16({3}), fp32({3})); },
       {"BFloat16"}},
      {"to_host", "no source", [](F& f) { f.offload().to_host(fp32({3}), {}); }, {"Float [3]", "undefined"}},
      {"wait_to_host", "nothing", [](F& f) { f.offload().wait_to_host({}); }, {"0"}},
      {"wait_to_host",
       "an undefined number",
       [](F& f) {
         f.offload().wait_to_host({fp32({}), {}});
       },
       {"2"}},
      {"wait_fetch",
       "a tensor too few",
       [](F& f) {
         ActivationOffload activations(std::make_shared<HostOffload>(f.offload()));
         at::Tensor x = fp32({3});
         OffloadedTensors offloaded = activations.offload({&x});
         activations.fetch(offloaded);
         activations.wait_fetch(offloaded, {});
       },
       {"0 1"}},
  };
}

std::vector<WrongCall> calls_of_the_matrix_exchange() {
  return {
      {"start_collect",
       "a part too few",
       [](F&) {
         Halves halves;
         halves.parts.pop_back();
         halves.exchange->start_collect(halves.parts);
       },
       {"6 7"}},
      {"start_collect",
       "a part in bf16",
       [](F&) {
         Halves halves;
         halves.parts[1] = halves.parts[1].to(at::kBFloat16);
         halves.exchange->start_collect(halves.parts);
       },
       {"BFloat16", "Float"}},
      {"start_return",
       "an update that is not whole",
       [](F&) {
         Halves halves;
         halves.exchange->start_collect(halves.parts);
         std::vector<at::Tensor> updates = halves.exchange->wait_collect();
         updates[0] = updates[0].narrow(0, 0, 1);
         halves.exchange->start_return(updates);
       },
       {"Float [1, "}},
  };
}

class WrongTensorsOfParallel : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfParallel, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Executor, WrongTensorsOfParallel, ::testing::ValuesIn(calls_of_the_executor()));
INSTANTIATE_TEST_SUITE_P(WholeStates, WrongTensorsOfParallel, ::testing::ValuesIn(calls_of_whole_states()));
INSTANTIATE_TEST_SUITE_P(Offloading, WrongTensorsOfParallel, ::testing::ValuesIn(calls_of_offloading()));
INSTANTIATE_TEST_SUITE_P(MatrixExchange, WrongTensorsOfParallel, ::testing::ValuesIn(calls_of_the_matrix_exchange()));

}  // namespace
}  // namespace titan
