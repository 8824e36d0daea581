// Every operation that takes tensors refuses wrong ones at its entry, with exit code 70 and the tensors in the message.
// tests/structure/tensor_functions_test.cpp requires a row for each function that titan/ops declares.
#include <gtest/gtest.h>

#include "src/ops/attention_kernels.h"
#include "src/ops/matrix_product.h"
#include "src/ops/tiled_attention.h"
#include "support/float8_scales.h"
#include "support/operation.h"
#include "support/wrong_tensors.h"
#include "titan/ops/bias.h"
#include "titan/ops/cross_entropy.h"
#include "titan/ops/embedding.h"
#include "titan/ops/float8_products.h"
#include "titan/ops/fused_kernels.h"
#include "titan/ops/key_value_cache.h"
#include "titan/ops/norm.h"
#include "titan/ops/rotary.h"
#include "titan/ops/swiglu.h"

namespace titan {
namespace {

using test::bf16, test::elsewhere, test::fp32, test::fp64, test::int32, test::int64;

at::Tensor float8(at::IntArrayRef shape) { return fp32(shape).to(at::kFloat8_e4m3fn); }
at::Tensor table(int64_t positions, int64_t pairs) {
  return at::zeros({positions, pairs}, at::TensorOptions(at::kComplexFloat));
}

/// What the calls share. `wide` is [4, 6], as the weight of a linear layer; `vocabulary` [9, 6].
struct Fixture {
  PlainContext plain;
  UnitContext& context = plain.context;
  std::unique_ptr<Parameter> wide = live_parameter("wide", fp32({4, 6}));
  std::unique_ptr<Parameter> norm = live_parameter("norm", fp32({6}));
  std::unique_ptr<Parameter> vocabulary = live_parameter("vocabulary", fp32({9, 6}));
  std::unique_ptr<Parameter> bias = live_parameter("bias", fp32({8}));
  ColumnGradients columns{{4, 2}};
  KeyValueCache cache{2, 8};
  at::Tensor anchor = fp32({0});
  std::shared_ptr<const SequenceParallel> exchange =
      make_collective_sequence_parallel(make_fake_communicator("tp", 0, 2));
  std::shared_ptr<Communicator> ranks = make_fake_communicator("tp", 0, 2);

  ParallelLinear linear() { return {{wide.get()}, 0, std::make_shared<DenseProducts>()}; }
  Norm rms() { return {NormType::rmsnorm, norm.get(), 1e-5, 0}; }
  Vocabulary shared() {
    const TensorParallel parallel{ranks, exchange};
    return {*vocabulary, &parallel};
  }
};

using WrongCall = test::WrongCall<Fixture>;
using F = Fixture;

std::vector<WrongCall> calls_of_attention() {
  const auto core = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return [=](F& f) { make_sdpa_core(false)->forward(q, k, v, {}, f.context); };
  };
  const at::Tensor q = fp32({2, 5, 4, 8}), k = fp32({2, 5, 2, 8});
  const at::Tensor sums = fp32({2, 4, 5});
  const std::vector<AttentionBlock> none;
  return {
      {"AttentionCore::forward",
       "fewer keys than queries",
       core(q, fp32({2, 3, 2, 8}), fp32({2, 3, 2, 8})),
       {"[2, 5, 4, 8]", "[2, 3, 2, 8]"}},
      {"AttentionCore::forward", "a value of another dtype", core(q, k, bf16({2, 5, 2, 8})), {"Float", "BFloat16"}},
      {"AttentionCore::forward", "a key on another device", core(q, elsewhere({2, 5, 2, 8}), k), {"cpu", "meta"}},
      {"AttentionCore::forward",
       "heads that do not share",
       core(q, fp32({2, 5, 3, 8}), fp32({2, 5, 3, 8})),
       {"[2, 5, 4, 8]", "[2, 5, 3, 8]"}},
      {"attend",
       "a key of other samples",
       [=](F& f) {
         f.cache.attend(0, q, fp32({1, 5, 2, 8}), fp32({1, 5, 2, 8}));
       },
       {"[2, 5, 4, 8]", "[1, 5, 2, 8]"}},
      {"attend",
       "heads that differ from those held",
       [=](F& f) {
         f.cache.attend(0, q, k, k);
         f.cache.attend(0, q, fp32({2, 5, 1, 8}), fp32({2, 5, 1, 8}));
       },
       {"[2, 8, 2, 8]", "[2, 5, 1, 8]"}},
      {"tiled_attention",
       "fp64",
       [=](F&) {
         tiled_attention(fp64({1, 2, 1, 4}), fp64({1, 2, 1, 4}), fp64({1, 2, 1, 4}), none);
       },
       {"Double [1, 2, 1, 4]"}},
      {"tiled_attention_backward",
       "a gradient of another shape",
       [=](F&) {
         tiled_attention_backward(fp32({2, 5, 4, 9}), q, k, k, q, sums, none);
       },
       {"[2, 5, 4, 9]", "[2, 5, 4, 8]"}},
      {"merge_tiled_attention",
       "a narrow accumulator",
       [=](F&) {
         merge_tiled_attention({bf16({2, 5, 4, 8}), sums}, q, k, k, none);
       },
       {"BFloat16 [2, 5, 4, 8]"}},
      {"add_tiled_gradients",
       "a log-sum-exp by tokens",
       [=](F&) {
         add_tiled_gradients({q, k, k}, q, q, k, k, q, fp32({2, 5, 4}), none);
       },
       {"[2, 5, 4] on", "[2, 5, 4, 8]"}},
      {"dense_attention",
       "a key of other heads",
       [=](F&) {
         dense_attention(AttentionKernel::flash, q.transpose(1, 2), fp32({2, 3, 5, 8}), fp32({2, 3, 5, 8}), true);
       },
       {"[2, 4, 5, 8]", "[2, 3, 5, 8]"}},
      {"dense_attention_backward",
       "an output of another dtype",
       [=](F&) {
         const at::Tensor x = q.transpose(1, 2);
         dense_attention_backward(AttentionKernel::flash, x, x, x, x, {bf16({2, 4, 5, 8}), sums, {}}, true);
       },
       {"BFloat16 [2, 4, 5, 8]"}},
  };
}

std::vector<WrongCall> calls_of_biases_and_columns() {
  return {
      {"add_bias",
       "heads of another width",
       [](F& f) {
         add_bias(fp32({3, 2, 5}), *f.bias, 0, f.context);
       },
       {"bias", "[3, 2, 5]", "[8]"}},
      {"add_bias",
       "another dtype",
       [](F& f) {
         add_bias(bf16({3, 2, 4}), *f.bias, 0, f.context);
       },
       {"BFloat16", "Float"}},
      {"columns",
       "a gradient of other rows",
       [](F& f) {
         f.columns.columns(0, fp32({3, 4}));
         f.columns.columns(1, fp32({5, 2}));
       },
       {"[3, 6]", "[5, 2]"}},
      {"columns",
       "a layer too many",
       [](F& f) {
         f.columns.columns(2, fp32({3, 4}));
       },
       {"2 2", "[3, 4]"}},
      {"complete",
       "a gradient too few",
       [](F& f) {
         f.columns.complete({fp32({3, 4})});
       },
       {"1 2"}},
      {"joined_rows", "nothing", [](F&) { joined_rows({}); }, {"0"}},
  };
}

std::vector<WrongCall> calls_of_norms() {
  return {
      {"Norm::forward",
       "a delta of another shape",
       [](F& f) {
         f.rms().forward(fp32({3, 6}), fp32({2, 6}), f.context);
       },
       {"[3, 6]", "[2, 6]"}},
      {"Norm::forward",
       "another width than the weight's",
       [](F& f) {
         f.rms().forward(fp32({3, 5}), {}, f.context);
       },
       {"[3, 5]", "[6]"}},
      {"add_closing",
       "another dtype",
       [](F& f) {
         add_closing(fp32({3, 6}), bf16({3, 6}), f.context);
       },
       {"Float [3, 6]", "BFloat16 [3, 6]"}},
      {"rms_norm",
       "a weight of another dtype",
       [](F&) {
         rms_norm(fp32({3, 6}), bf16({6}), 1e-5, false);
       },
       {"Float [3, 6]", "BFloat16 [6]"}},
      {"rms_norm_backward",
       "statistics of other rows",
       [](F&) {
         rms_norm_backward(fp32({3, 6}), {}, fp32({3, 6}), fp32({2, 1}), fp32({6}));
       },
       {"[2, 1]", "[3, 6]"}},
      {"rms_norm_backward",
       "a residual of another shape",
       [](F&) {
         rms_norm_backward(fp32({3, 6}), fp32({6}), fp32({3, 6}), fp32({3, 1}), fp32({6}));
       },
       {"[6] on"}},
  };
}

std::vector<WrongCall> calls_of_elements() {
  return {
      {"rotate",
       "keys of other tokens",
       [](F& f) {
         rotate(fp32({2, 5, 4, 8}), fp32({2, 4, 2, 8}), table(9, 4), {}, f.context);
       },
       {"[2, 5, 4, 8]", "[2, 4, 2, 8]"}},
      {"rotate",
       "a table of other heads",
       [](F& f) {
         rotate(fp32({2, 5, 4, 8}), fp32({2, 5, 2, 8}), table(9, 3), {}, f.context);
       },
       {"ComplexFloat [9, 3]", "[2, 5, 4, 8]"}},
      {"rotate",
       "a table that is too short",
       [](F& f) {
         rotate(fp32({2, 5, 4, 8}), fp32({2, 5, 2, 8}), table(4, 4), {}, f.context);
       },
       {"[4, 4]"}},
      {"rotate",
       "positions in another dtype",
       [](F& f) {
         rotate(fp32({2, 5, 4, 8}), fp32({2, 5, 2, 8}), table(9, 4), int32({1, 5}), f.context);
       },
       {"Int [1, 5]"}},
      {"swiglu",
       "another width",
       [](F& f) {
         swiglu(fp32({3, 6}), fp32({3, 5}), f.context);
       },
       {"[3, 6]", "[3, 5]"}},
      {"offer", "an amax of two numbers", [](F& f) { f.context.scales.offer(fp32({3}), fp32({2})); }, {"[2]", "[3]"}},
      {"add_to_gradient",
       "a share of another shape",
       [](F& f) {
         f.wide->add_to_gradient(fp32({6, 4}));
       },
       {"wide", "Float [6, 4]", "Float [4, 6]"}},
      {"set_gradient",
       "another shape than the weight's",
       [](F& f) {
         f.wide->set_gradient(fp32({6, 4}));
       },
       {"wide", "[6, 4]"}},
      {"kernel_type", "fp64", [](F&) { kernel_type(fp64({2})); }, {"Double"}},
  };
}

std::vector<WrongCall> calls_of_the_vocabulary() {
  const auto loss = [](const at::Tensor& hidden, const at::Tensor& labels) {
    return [=](F& f) { linear_cross_entropy(hidden, labels, *f.vocabulary, {}, f.context); };
  };
  return {
      {"linear_cross_entropy", "labels in another dtype", loss(fp32({4, 6}), int32({2, 2})), {"Int [2, 2]", "[4, 6]"}},
      {"linear_cross_entropy", "a label too many", loss(fp32({4, 6}), int64({5})), {"[5]", "[4, 6]"}},
      {"linear_cross_entropy", "another width", loss(fp32({4, 7}), int64({4})), {"vocabulary", "[4, 7]", "[9, 6]"}},
      {"linear_cross_entropy", "another dtype", loss(bf16({4, 6}), int64({4})), {"BFloat16 [4, 6]", "Float [9, 6]"}},
      {"linear_logits",
       "another width",
       [](F& f) {
         linear_logits(fp32({4, 5}), *f.vocabulary, nullptr);
       },
       {"[4, 5]", "[9, 6]"}},
      {"linear_logits",
       "rows in another dtype",
       [](F& f) {
         linear_logits(fp32({4, 6}), *f.vocabulary, nullptr, int32({2}));
       },
       {"Int [2]"}},
      {"multiply",
       "a scale of two numbers",
       [](F&) {
         at::Tensor x = fp32({3});
         LossScale(1.0, fp64({2})).multiply(x);
       },
       {"Double [2]"}},
      {"embedding",
       "tokens in another dtype",
       [](F& f) {
         embedding(f.anchor, int32({2, 3}), *f.vocabulary, nullptr, f.context);
       },
       {"vocabulary", "Int [2, 3]"}},
      {"gather",
       "logits of another vocabulary",
       [](F& f) {
         (void)f.shared().gather(fp32({3, 8}));
       },
       {"[3, 8]", "9"}},
      {"masked_losses", "a label too many", [](F&) { masked_losses(fp32({3}), int64({4}), 9); }, {"[3]", "[4]"}},
      {"row_losses",
       "narrow logits",
       [](F&) {
         row_losses(bf16({3, 9}), int64({3}), {}, false);
       },
       {"BFloat16 [3, 9]"}},
      {"parallel_row_losses",
       "logits of another vocabulary",
       [](F& f) {
         parallel_row_losses(fp32({3, 8}), int64({3}), {}, false, f.shared());
       },
       {"[3, 8]", "9"}},
  };
}

std::vector<WrongCall> calls_of_sequence_parallel() {
  return {
      {"gather_rows",
       "three dimensions",
       [](F& f) {
         gather_rows(*f.exchange, fp32({2, 3, 6}));
       },
       {"[2, 3, 6]"}},
      {"scatter_rows",
       "rows that ranks do not share",
       [](F& f) {
         scatter_rows(*f.exchange, fp32({5, 6}));
       },
       {"[5, 6]", "2"}},
      {"scatter_sum",
       "rows that ranks do not share",
       [](F& f) { f.exchange->scatter_sum(5, [](int64_t, int64_t) {
                    return fp32({5, 6});
                  }); },
       {"5 2"}},
  };
}

std::vector<WrongCall> calls_of_products() {
  const auto linear = [](const at::Tensor& x) { return [=](F& f) { f.linear().forward(x, f.context); }; };
  return {
      {"ParallelLinear::forward", "another width", linear(fp32({3, 8})), {"wide", "[3, 8]", "[4, 6]"}},
      {"ParallelLinear::forward", "as many numbers in other rows", linear(fp32({6, 4})), {"[6, 4]", "[4, 6]"}},
      {"ParallelLinear::forward", "another dtype", linear(bf16({3, 6})), {"BFloat16 [3, 6]", "Float [4, 6]"}},
      {"ParallelLinear::forward", "another device", linear(elsewhere({3, 6})), {"meta"}},
      {"product_with_transposed",
       "another depth",
       [](F&) {
         product_with_transposed(fp32({3, 6}), fp32({4, 5}));
       },
       {"[3, 6]", "[4, 5]"}},
      {"product_of_few_rows",
       "another depth",
       [](F&) {
         product_of_few_rows(fp32({3, 6}), fp32({4, 5}));
       },
       {"[3, 6]", "[4, 5]"}},
      {"product",
       "another dtype",
       [](F&) {
         product(fp32({3, 4}), bf16({4, 6}));
       },
       {"Float", "BFloat16"}},
      {"product_into",
       "a target of another shape",
       [](F&) {
         at::Tensor target = fp32({3, 5});
         product_into(target, fp32({3, 4}), fp32({4, 6}), false);
       },
       {"[3, 5]", "3 6 Float"}},
      {"transposed_product_into",
       "a narrow target",
       [](F&) {
         at::Tensor target = bf16({4, 6});
         transposed_product_into(target, fp32({3, 4}), fp32({3, 6}), false);
       },
       {"BFloat16 [4, 6]", "Float"}},
      {"wide_transposed_product_into",
       "other rows",
       [](F&) {
         at::Tensor target = fp32({4, 6});
         wide_transposed_product_into(target, bf16({3, 4}), bf16({2, 6}), false);
       },
       {"[3, 4]", "[2, 6]"}},
      {"DenseProducts::forward",
       "another depth",
       [](F&) {
         DenseProducts().forward(Operand{.data = fp32({3, 6})}, fp32({4, 5}));
       },
       {"[3, 6]", "[4, 5]"}},
      {"input_gradient",
       "another depth",
       [](F&) {
         at::Tensor dx;
         DenseProducts().input_gradient({.data = fp32({3, 6})}, fp32({4, 5}), dx);
       },
       {"[3, 6]", "[4, 5]"}},
      {"weight_gradient",
       "a gradient of another shape",
       [](F&) {
         DenseProducts().weight_gradient({.data = fp32({3, 4})}, {.data = fp32({3, 6})}, fp32({6, 4}), false);
       },
       {"[6, 4]", "4 6"}},
  };
}

std::vector<WrongCall> calls_of_float8() {
  const auto float8_times = [](const at::Tensor& rows, const at::Tensor& scale) {
    return [=](F&) {
      const Float8Side right{float8({4, 6}), float8_scale_of(fp32({}))};
      float8_product({rows, float8_scale_of(scale)}, right, at::kFloat, /*fast=*/false, /*emulate=*/true);
    };
  };
  return {
      {"float8_scale", "whole numbers", [](F&) { float8_scale(int64({2}), Float8Format::e4m3); }, {"Long [2]"}},
      {"amax", "rows of a vector", [](F&) { make_aten_float8_casts().amax(fp32({3}), Float8Extent::row); }, {"[3]"}},
      {"cast",
       "scales of other rows",
       [](F&) {
         make_aten_float8_casts().cast(fp32({3, 6}), fp32({2, 1}), Float8Format::e4m3, Float8Sides::data);
       },
       {"[3, 6]", "[2, 1]"}},
      {"float8_product", "an operand that is not float8", float8_times(fp32({3, 6}), fp32({})), {"Float [3, 6]"}},
      {"float8_product", "another depth", float8_times(float8({3, 5}), fp32({})), {"[3, 5]", "[4, 6]"}},
      {"float8_product", "scales of other rows", float8_times(float8({3, 6}), fp32({2, 1})), {"[3, 6]", "[2, 1]"}},
  };
}

class WrongTensors : public ::testing::TestWithParam<WrongCall> {};

TEST_P(WrongTensors, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Attention, WrongTensors, ::testing::ValuesIn(calls_of_attention()));
INSTANTIATE_TEST_SUITE_P(BiasesAndColumns, WrongTensors, ::testing::ValuesIn(calls_of_biases_and_columns()));
INSTANTIATE_TEST_SUITE_P(Norms, WrongTensors, ::testing::ValuesIn(calls_of_norms()));
INSTANTIATE_TEST_SUITE_P(Elements, WrongTensors, ::testing::ValuesIn(calls_of_elements()));
INSTANTIATE_TEST_SUITE_P(Vocabulary, WrongTensors, ::testing::ValuesIn(calls_of_the_vocabulary()));
INSTANTIATE_TEST_SUITE_P(SequenceParallel, WrongTensors, ::testing::ValuesIn(calls_of_sequence_parallel()));
INSTANTIATE_TEST_SUITE_P(Products, WrongTensors, ::testing::ValuesIn(calls_of_products()));
INSTANTIATE_TEST_SUITE_P(Float8, WrongTensors, ::testing::ValuesIn(calls_of_float8()));

TEST(RightTensors, PassTheSameChecks) {
  Fixture f;
  const at::Tensor q = fp32({2, 5, 4, 8}), k = fp32({2, 5, 2, 8});
  EXPECT_EQ(make_sdpa_core(false)->forward(q, k, k, {}, f.context).sizes(), q.sizes());
  EXPECT_EQ(f.cache.attend(0, q, k, k).sizes(), q.sizes());
  EXPECT_EQ(rotate(q, k, table(9, 4), int64({1, 5}), f.context).first.sizes(), q.sizes());
  EXPECT_EQ(f.linear().forward(fp32({3, 2, 3}), f.context)[0].sizes(), at::IntArrayRef({3, 4})) << "in may span two";
  EXPECT_EQ(f.rms().forward(fp32({2, 3, 6}), fp32({2, 3, 6}), f.context).normed.sizes(), at::IntArrayRef({2, 3, 6}));
  EXPECT_EQ(linear_cross_entropy(fp32({2, 2, 6}), int64({2, 2}), *f.vocabulary, {}, f.context).dim(), 0);
  EXPECT_EQ(linear_logits(fp32({4, 6}), *f.vocabulary, nullptr, int64({2})).sizes(), at::IntArrayRef({2, 9}));
  f.wide->set_gradient({});
}

}  // namespace
}  // namespace titan
