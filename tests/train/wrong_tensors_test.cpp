// Functions of titan/train refuse wrong tensors at their entry.
#include "support/wrong_tensors.h"

#include "support/model.h"
#include "support/optimizer_options.h"
#include "titan/optimize/adam.h"
#include "titan/train/debug_dump.h"
#include "titan/train/device.h"
#include "titan/train/step_runner.h"

namespace titan {
namespace {

using test::bf16, test::fp32, test::fp64, test::int32, test::int64;

/// One microbatch, and a model whose step runs.
struct WrongFixture {
  WrongFixture() : small(small_request()), microbatches{small.batch()} {}

  DebugDump dump() { return {{}, microbatches}; }
  void step(std::span<const BatchContext> batches) {
    with_runner([&](StepRunner& runner) { runner.run(batches, 1, 0.1); });
  }
  void with_runner(const std::function<void(StepRunner&)>& act) {
    AdamOptimizer optimizer({}, {}, optimizer_options());
    StepRunner runner(*small.executor, optimizer, std::vector<std::vector<Parameter*>>(small.plan.groups.size()), 1.0);
    act(runner);
  }

  SmallModel small;
  std::vector<BatchContext> microbatches;
};

using WrongCall = test::WrongCall<WrongFixture>;
using F = WrongFixture;

std::vector<WrongCall> wrong_calls() {
  return {
      {"DebugDump",
       "tokens of int32",
       [](F& f) {
         f.microbatches[0].tokens = int32({2, 13});
         f.dump();
       },
       {"Int [2, 13]"}},
      {"add_logits",
       "logits of rows",
       [](F& f) {
         f.dump().add_logits({fp32({26, 59})});
       },
       {"[26, 59]"}},
      {"add_logits",
       "microbatches in two dtypes",
       [](F& f) {
         f.dump().add_logits({fp32({2, 13, 59}), bf16({2, 13, 59})});
       },
       {"BFloat16", "Float"}},
      {"add_gradients", "a loss in fp32", [](F& f) { f.dump().add_gradients(fp32({}), fp64({})); }, {"Float []"}},
      {"add_gradients", "two norms", [](F& f) { f.dump().add_gradients(fp64({}), fp64({2})); }, {"Double [2]"}},
      {"HostCopy", "numbers in fp32", [](F&) { HostCopy copy(fp32({3})); }, {"Float [3]"}},
      {"HostCopy", "nothing", [](F&) { HostCopy copy{at::Tensor()}; }, {"undefined"}},
      {"run", "no microbatch", [](F& f) { f.step({}); }, {"step = 1"}},
      {"run",
       "a label too few",
       [](F& f) {
         f.microbatches[0].labels = int64({2, 12});
         f.step(f.microbatches);
       },
       {"[2, 12]", "[2, 13]"}},
      {"replay",
       "a label too few",
       [](F& f) {
         f.microbatches[0].labels = int64({2, 12});
         f.with_runner([&](StepRunner& runner) { runner.replay(f.microbatches[0]); });
       },
       {"[2, 12]", "[2, 13]"}},
  };
}

class WrongTensorsOfTrain : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfTrain, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Train, WrongTensorsOfTrain, ::testing::ValuesIn(wrong_calls()));

}  // namespace
}  // namespace titan
