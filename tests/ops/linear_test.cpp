#include "titan/ops/linear.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/operation.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Linear layers over `rows` with its own parameters and an input of `shape`.
struct LinearsCase {
  LinearsCase(const std::vector<int64_t>& rows, std::vector<int64_t> shape, at::ScalarType type, int64_t head_dim = 0,
              bool round = false) {
    for (size_t i = 0; i < rows.size(); ++i) {
      at::Tensor weight = normal({rows[i], shape.back()}, 10 + i, type);
      owned.push_back(live_parameter("w" + std::to_string(i), weight));
      weights.push_back(owned.back().get());
    }
    x = leaf(normal(shape, 1, type));
    linears = std::make_unique<ParallelLinear>(weights, 0, std::make_shared<DenseProducts>(round));
    if (head_dim > 0) heads = HeadShape{shape[0], shape[1], head_dim};
  }

  /// Gradient of output `i`, the same for every call.
  at::Tensor output_gradient(const at::Tensor& output, size_t i) const {
    return normal(output.sizes(), 100 + i, output.scalar_type());
  }

  at::Tensor run() {
    outputs = linears->forward(x, plain.context, heads);
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < outputs.size(); ++i) gradients.push_back(output_gradient(outputs[i], i));
    return backward(outputs, gradients, {x})[0];
  }

  at::Tensor matrix(const at::Tensor& tensor, int64_t columns) const {
    return as_double(tensor).reshape({-1, columns});
  }
  at::Tensor weight_gradient(size_t i) const {
    const at::Tensor dy = matrix(output_gradient(outputs[i], i), weights[i]->spec().shape[0]);
    return dy.t().mm(matrix(x, x.size(-1)));
  }

  PlainContext plain;
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> weights;
  std::unique_ptr<ParallelLinear> linears;
  std::optional<HeadShape> heads;
  at::Tensor x;
  std::vector<at::Tensor> outputs;
};

using LinearSizes = std::tuple<std::vector<int64_t>, std::vector<int64_t>>;
class LinearShapes : public ::testing::TestWithParam<std::tuple<LinearSizes, at::ScalarType>> {};

TEST_P(LinearShapes, ForwardAndEveryGradientFollowTheFloat64Products) {
  const auto& [sizes, type] = GetParam();
  const auto& [rows, shape] = sizes;
  LinearsCase test(rows, shape, type);
  const at::Tensor dx = test.run();
  at::Tensor expected_dx = at::zeros(test.x.sizes(), at::kDouble).reshape({-1, shape.back()});
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor weight = as_double(test.weights[i]->weight());
    const std::vector<int64_t> output_shape{test.x.numel() / shape.back(), rows[i]};
    const at::Tensor expected = test.matrix(test.x, shape.back()).mm(weight.t()).view(output_shape);
    EXPECT_TRUE(near(test.outputs[i], expected, tolerance(type)));
    expected_dx += test.matrix(test.output_gradient(test.outputs[i], i), rows[i]).mm(weight);
    EXPECT_TRUE(near(test.weights[i]->gradient(), test.weight_gradient(i), tolerance(at::kFloat)))
        << "weight gradients are fp32 products whatever the operands";
    EXPECT_EQ(test.weights[i]->gradient().scalar_type(), at::kFloat);
  }
  EXPECT_TRUE(near(dx, expected_dx.view(shape), tolerance(type)));
  EXPECT_EQ(dx.scalar_type(), type);
}

INSTANTIATE_TEST_SUITE_P(Linear, LinearShapes,
                         ::testing::Combine(::testing::Values(LinearSizes{{7}, {5, 3}}, LinearSizes{{64}, {2, 32, 64}},
                                                              LinearSizes{{13, 11}, {3, 17, 19}},
                                                              LinearSizes{{48, 16, 16}, {2, 31, 48}},
                                                              LinearSizes{{1, 2, 3}, {1, 1, 5}}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

TEST(Linear, HeadSizeShapesTheOutputsAndTheInputMayBeSpreadOverHeads) {
  LinearsCase test({24, 8}, {2, 5, 12}, at::kFloat, /*head_dim=*/4);
  test.run();
  EXPECT_EQ(test.outputs[0].sizes(), (std::vector<int64_t>{2, 5, 6, 4}));
  EXPECT_EQ(test.outputs[1].sizes(), (std::vector<int64_t>{2, 5, 2, 4}));
  EXPECT_TRUE(near(test.weights[0]->gradient(), test.weight_gradient(0), tolerance(at::kFloat)));

  auto weight = live_parameter("wo", normal({6, 24}, 3));
  const ParallelLinear joins({weight.get()}, 0, std::make_shared<DenseProducts>());
  at::Tensor heads = leaf(normal({2, 5, 6, 4}, 4));
  at::Tensor joined = joins.forward(heads, test.plain.context)[0];
  EXPECT_EQ(joined.sizes(), (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(backward({joined}, {at::ones_like(joined)}, {heads})[0].sizes(), heads.sizes());
}

TEST(Linear, TheFirstGradientOfAStepOverwritesAndLaterOnesAdd) {
  LinearsCase test({6, 10}, {4, 8}, at::kFloat);
  test.run();  // the storage was full of NaN
  test.run();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(near(test.weights[i]->gradient(), 2 * test.weight_gradient(i), tolerance(at::kFloat)));
  }
}

TEST(Linear, AccumulationOfBf16GradientsHappensInFp32) {
  LinearsCase test({6}, {256, 8}, at::kBFloat16);
  for (int i = 0; i < 64; ++i) test.run();
  EXPECT_TRUE(near(test.weights[0]->gradient(), 64 * test.weight_gradient(0), 1e-5));
}

TEST(Linear, RoundedWeightGradientsAreTheBf16ProductAndStayWithinItsBound) {
  LinearsCase rounded({32}, {64, 16}, at::kBFloat16, 0, /*round=*/true);
  rounded.run();
  const at::Tensor once = rounded.weights[0]->gradient().clone();
  EXPECT_TRUE(same_bits(once, once.to(at::kBFloat16).to(at::kFloat))) << "each product is rounded to bf16";
  EXPECT_TRUE(near(once, rounded.weight_gradient(0), tolerance(at::kBFloat16)));
  rounded.run();
  EXPECT_TRUE(same_bits(rounded.weights[0]->gradient(), once + once)) << "and added in fp32";
}

// Of few tokens and of many, whose products go to another library on a CPU.
TEST(Linear, AGradientInBf16IsTheOneInFp32RoundedOnce) {
  for (const bool round : {false, true}) {
    for (const int64_t tokens : {5, 301}) {
      LinearsCase wide({13, 32}, {tokens, 24}, at::kBFloat16, 0, round),
          narrow({13, 32}, {tokens, 24}, at::kBFloat16, 0, round);
      for (Parameter* weight : narrow.weights) narrow_gradient(*weight);
      EXPECT_TRUE(same_bits(narrow.run(), wide.run()));
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(same_bits(narrow.weights[i]->gradient(), wide.weights[i]->gradient().to(at::kBFloat16)));
      }
    }
  }
}

TEST(Linear, ASecondProductIntoAGradientInBf16IsABug) {
  const auto weight = live_parameter("w", normal({4, 3}, 1, at::kBFloat16));
  narrow_gradient(*weight);
  const DenseProducts products;
  const Operand dy{.data = normal({5, 4}, 2, at::kBFloat16), .is_gradient = true},
      x{.data = normal({5, 3}, 3, at::kBFloat16)};
  products.weight_gradient(dy, products.for_weight_gradients(x, {weight.get()}), *weight);
  EXPECT_THROW(products.weight_gradient(dy, products.for_weight_gradients(x, {weight.get()}), *weight), InvariantError);
}

TEST(Linear, AFrozenWeightGetsNoGradientButItsInputDoes) {
  auto frozen = live_parameter("frozen", normal({4, 3}, 5), /*trainable=*/false);
  PlainContext plain;
  const ParallelLinear linears({frozen.get()}, 0, std::make_shared<DenseProducts>());
  at::Tensor x = leaf(normal({2, 3}, 6));
  at::Tensor y = linears.forward(x, plain.context)[0];
  EXPECT_TRUE(backward({y}, {at::ones_like(y)}, {x})[0].defined());
  EXPECT_FALSE(frozen->gradient_written());
}

TEST(Linear, AnOutputWithoutGradientLeavesItsWeightAlone) {
  LinearsCase test({5, 6}, {4, 3}, at::kFloat);
  std::vector<at::Tensor> outputs = test.linears->forward(test.x, test.plain.context);
  backward({outputs[1]}, {at::ones_like(outputs[1])}, {test.x});
  EXPECT_FALSE(test.weights[0]->gradient_written());
  EXPECT_TRUE(test.weights[1]->gradient_written());
}

TEST(Linear, TheWeightIsAskedForAgainInBackward) {
  LinearsCase test({5}, {4, 3}, at::kFloat);
  at::Tensor y = test.linears->forward(test.x, test.plain.context)[0];
  test.weights[0]->set_weight(at::zeros({5, 3}));  // another slot, another content
  EXPECT_TRUE(same_bits(backward({y}, {at::ones_like(y)}, {test.x})[0], at::zeros({4, 3})));
}

TEST(Linear, AWeightThatIsNotUnshardedIsABugNamedByItsParameter) {
  LinearsCase test({5}, {4, 3}, at::kFloat);
  test.weights[0]->set_weight({});
  try {
    test.linears->forward(test.x, test.plain.context);
    FAIL() << "a product without a weight";
  } catch (const InvariantError& error) {
    EXPECT_NE(std::string(error.what()).find("w0"), std::string::npos) << error.what();
  }
}

TEST(Linear, QueuedWeightGradientsWaitForTheirRunAndGiveTheSameBits) {
  LinearsCase now({6, 4}, {9, 5}, at::kFloat);
  now.run();
  LinearsCase later({6, 4}, {9, 5}, at::kFloat);
  QueueSink queue;
  later.plain.context.sink = &queue;
  later.run();
  EXPECT_FALSE(later.weights[0]->gradient_written());
  EXPECT_EQ(queue.size(), 1u) << "the products of layers that share their input wait together";
  queue.run();
  EXPECT_EQ(queue.size(), 0u);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(later.weights[i]->gradient(), now.weights[i]->gradient()));
}

/// Three weights adjacent in memory, as the weight store holds them, and their gradients.
struct AdjacentCase : LinearsCase {
  explicit AdjacentCase(at::ScalarType type, bool trains_first = true, at::ScalarType gradient_type = at::kFloat)
      : LinearsCase({8, 4, 4}, {2, 5, 12}, type, /*head_dim=*/4) {
    const at::Tensor all = normal({16, 12}, 10, type);
    gradients = at::full({16, 12}, NAN, at::TensorOptions(gradient_type));
    owned[0] = live_parameter("w0", all.narrow(0, 0, 8), trains_first);
    weights[0] = owned[0].get();
    linears = std::make_unique<ParallelLinear>(weights, 0, std::make_shared<DenseProducts>());
    int64_t first = 0;
    for (Parameter* weight : weights) {
      const int64_t rows = weight->spec().shape[0];
      weight->set_weight(all.narrow(0, first, rows));
      weight->set_gradient(gradients.narrow(0, first, rows));
      first += rows;
    }
  }

  /// One product for all weights if `joins`; the gradient of output 0 is written to its columns by who computes it.
  at::Tensor run_once(bool joins) {
    const auto columns = joins ? linears->column_gradients() : nullptr;
    EXPECT_EQ(columns != nullptr, joins);
    outputs = linears->forward(x, plain.context, heads, columns);
    std::vector<at::Tensor> dys;
    for (size_t i = 0; i < outputs.size(); ++i) dys.push_back(output_gradient(outputs[i], i));
    if (joins) dys[0] = columns->columns(0, dys[0]).copy_(dys[0]);
    return backward(outputs, dys, {x})[0];
  }

  at::Tensor gradients;
};

TEST(AdjacentWeights, OneProductGivesWhatOneForEachGives) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    AdjacentCase joined(type), apart(type);
    for (const int times : {1, 2}) {  // the second time gradients are added
      const at::Tensor dx = joined.run_once(true), expected = apart.run_once(false);
      EXPECT_TRUE(near(dx, as_double(expected), tolerance(type)));
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(joined.outputs[i].sizes(), apart.outputs[i].sizes());
        EXPECT_EQ(joined.outputs[i].stride(1), 16) << "columns of one matrix";
        EXPECT_TRUE(near(joined.outputs[i], as_double(apart.outputs[i]), tolerance(type)));
        EXPECT_TRUE(near(joined.weights[i]->gradient(), times * joined.weight_gradient(i), tolerance(at::kFloat)));
      }
    }
  }
}

TEST(AdjacentWeights, OfWhichOneIsFrozenOrHasNoGradientAreMultipliedApartInBackward) {
  AdjacentCase frozen(at::kFloat, /*trains_first=*/false), apart(at::kFloat, false);
  EXPECT_TRUE(near(frozen.run_once(true), as_double(apart.run_once(false)), tolerance(at::kFloat)));
  EXPECT_FALSE(frozen.weights[0]->gradient_written());
  EXPECT_TRUE(near(frozen.weights[2]->gradient(), frozen.weight_gradient(2), tolerance(at::kFloat)));

  AdjacentCase some(at::kFloat);
  some.outputs = some.linears->forward(some.x, some.plain.context, some.heads, some.linears->column_gradients());
  backward({some.outputs[1]}, {some.output_gradient(some.outputs[1], 1)}, {some.x});
  EXPECT_FALSE(some.weights[0]->gradient_written());
  EXPECT_TRUE(near(some.weights[1]->gradient(), some.weight_gradient(1), tolerance(at::kFloat)));
}

TEST(AdjacentWeights, GradientsOfWhichSomeAreWrittenAreAddedOneByOne) {
  AdjacentCase test(at::kFloat);
  test.weights[1]->gradient().fill_(1);
  test.weights[1]->mark_gradient_written();
  test.run_once(true);
  EXPECT_TRUE(near(test.weights[0]->gradient(), test.weight_gradient(0), tolerance(at::kFloat)));
  EXPECT_TRUE(near(test.weights[1]->gradient(), 1 + test.weight_gradient(1), tolerance(at::kFloat)));
}

TEST(AdjacentWeights, OneProductWritesTheirGradientsInBf16) {
  AdjacentCase wide(at::kBFloat16), narrow(at::kBFloat16, true, at::kBFloat16);
  wide.run_once(true);
  narrow.run_once(true);
  EXPECT_TRUE(same_bits(narrow.gradients, wide.gradients.to(at::kBFloat16)));
}

TEST(AdjacentWeights, AQueuedWeightGradientIsOneProductThatWaits) {
  AdjacentCase now(at::kFloat), later(at::kFloat);
  now.run_once(true);
  QueueSink queue;
  later.plain.context.sink = &queue;
  later.run_once(true);
  for (const Parameter* weight : later.weights) EXPECT_FALSE(weight->gradient_written());
  queue.run();
  EXPECT_TRUE(same_bits(later.gradients, now.gradients));
  for (const Parameter* weight : later.weights) EXPECT_TRUE(weight->gradient_written());
}

TEST(AdjacentWeights, AKeptOutputIsATensorOfItsOwn) {
  AdjacentCase test(at::kFloat);
  test.plain.context.recorder = Recorder(RecomputePolicy::full().set(ResultKind::linear, 1, Keep::keep));
  test.plain.context.recorder.start(Recorder::Phase::first_run);
  const auto outputs = test.linears->forward(test.x, test.plain.context, test.heads, test.linears->column_gradients());
  for (const at::Tensor& output : outputs) EXPECT_EQ(output.storage().nbytes(), output.nbytes());
}

TEST(AdjacentWeights, AreNotJoinedWithAHoleBetweenThem) {
  AdjacentCase test(at::kFloat);
  test.weights[1]->set_weight(test.weights[1]->weight().clone());
  EXPECT_EQ(test.linears->column_gradients(), nullptr);
}

}  // namespace
}  // namespace titan
