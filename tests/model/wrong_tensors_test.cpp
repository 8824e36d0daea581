// Functions of titan/model refuse wrong tensors at their entry.
#include "support/wrong_tensors.h"

#include "support/model.h"

namespace titan {
namespace {

using test::fp32, test::fp64, test::int32, test::int64;

/// A batch of two samples of five tokens, and a model.
struct WrongFixture {
  WrongFixture() {
    batch.tokens = int64({2, 5});
    batch.labels = int64({2, 5});
  }

  HiddenStates forward(size_t unit, const HiddenStates& input) {
    ImmediateSink sink;
    UnitContext context(UnitMode::train, RecomputePolicy::none(), sink);
    SmallModel small(small_request());
    return small.model->chain()[unit]->forward(input, batch, context);
  }

  BatchContext batch;
};

using WrongCall = test::WrongCall<WrongFixture>;
using F = WrongFixture;

std::vector<WrongCall> wrong_calls() {
  const auto checked = [](const std::function<void(BatchContext&)>& change) {
    return [=](F& f) {
      change(f.batch);
      check_batch(f.batch);
    };
  };
  return {
      {"check_batch", "no tokens", checked([](BatchContext& b) { b.tokens.reset(); }), {"undefined", "[2, 5]"}},
      {"check_batch", "a flat row", checked([](BatchContext& b) { b.tokens = b.labels = int64({10}); }), {"[10]"}},
      {"check_batch",
       "narrow labels",
       checked([](BatchContext& b) {
         b.labels = int32({2, 5});
       }),
       {"Int [2, 5]"}},
      {"check_batch",
       "positions of other tokens",
       checked([](BatchContext& b) {
         b.positions = int64({1, 4});
       }),
       {"[1, 4]", "[2, 5]"}},
      {"check_batch",
       "rows of logits",
       checked([](BatchContext& b) {
         b.logit_rows = int64({1, 2});
       }),
       {"[1, 2]"}},
      {"check_batch", "two scales", checked([](BatchContext& b) { b.loss_scale_at = fp64({2}); }), {"Double [2]"}},
      {"samples_of", "a sample too many", [](F& f) { samples_of(f.batch, 1, 2); }, {"1 2", "[2, 5]"}},
      {"forward", "no hidden states in a block", [](F& f) { f.forward(1, {}); }, {"layers.0", "0"}},
      {"forward",
       "two hidden states in the head",
       [](F& f) {
         f.forward(4, {fp32({10, 24}), fp32({10, 24})});
       },
       {"head", "2"}},
      {"initialise",
       "a master that is not the box",
       [](F&) {
         Parameter parameter{{"w", {4, 6}, {}}};
         parameter.master = fp32({4, 5});
         initialise(parameter, {{0, 0}, {4, 6}}, 1);
       },
       {"w", "[4, 5]", "[4, 6]"}},
      {"initialise",
       "a master in fp64",
       [](F&) {
         Parameter parameter{{"w", {4, 6}, {}}};
         parameter.master = fp64({4, 6});
         initialise(parameter, {{0, 0}, {4, 6}}, 1);
       },
       {"w", "Double"}},
  };
}

class WrongTensorsOfModel : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfModel, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Model, WrongTensorsOfModel, ::testing::ValuesIn(wrong_calls()));

}  // namespace
}  // namespace titan
