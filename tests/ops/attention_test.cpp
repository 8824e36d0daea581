#include "titan/ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/masked_softmax.h"
#include "support/operation.h"
#include "titan/base/error.h"

namespace titan {
namespace {

struct AttentionCase {
  std::string name;
  int64_t samples, length, query_heads, key_heads, head_dim;
  std::vector<DocumentStarts> documents;  // empty: causal over the whole sample
  at::ScalarType type = at::kFloat;
};

void PrintTo(const AttentionCase& test, std::ostream* out) { *out << test.name; }

struct Inputs {
  explicit Inputs(const AttentionCase& c)
      : q(leaf(normal({c.samples, c.length, c.query_heads, c.head_dim}, 1, c.type))),
        k(leaf(normal({c.samples, c.length, c.key_heads, c.head_dim}, 2, c.type))),
        v(leaf(normal({c.samples, c.length, c.key_heads, c.head_dim}, 3, c.type))) {}
  std::vector<at::Tensor> all() const { return {q, k, v}; }
  at::Tensor q, k, v;
};

class AttentionCases : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionCases, OutputAndGradientsFollowTheMaskedFloat64Softmax) {
  const AttentionCase& test = GetParam();
  const Inputs inputs(test);
  const AttentionBounds bounds{test.documents};
  PlainContext plain;
  const auto core = make_sdpa_core(!test.documents.empty());
  const at::Tensor output = core->forward(inputs.q, inputs.k, inputs.v, bounds, plain.context);
  const at::Tensor q = leaf(as_double(inputs.q)), k = leaf(as_double(inputs.k)), v = leaf(as_double(inputs.v));
  const at::Tensor expected = masked_softmax(q, k, v, bounds);
  EXPECT_TRUE(near(output, expected, tolerance(test.type)));
  EXPECT_TRUE(output.is_contiguous());
  const at::Tensor d = normal(output.sizes(), 4, test.type);
  const auto got = backward({output}, {d}, inputs.all());
  const auto wanted = backward({expected}, {as_double(d)}, {q, k, v});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(got[i], wanted[i], 2 * tolerance(test.type))) << "qkv"[i];
}

INSTANTIATE_TEST_SUITE_P(
    Attention, AttentionCases,
    ::testing::Values(
        AttentionCase{"one token", 1, 1, 1, 1, 8, {}}, AttentionCase{"odd", 2, 37, 3, 3, 16, {}},
        AttentionCase{"long", 1, 131, 2, 2, 32, {}}, AttentionCase{"grouped", 2, 37, 6, 2, 16, {}},
        AttentionCase{"one key head", 1, 65, 4, 1, 8, {}}, AttentionCase{"one tile", 1, 64, 2, 1, 64, {}},
        AttentionCase{"two tiles", 1, 128, 2, 2, 16, {}}, AttentionCase{"many tiles", 1, 449, 1, 1, 20, {}},
        AttentionCase{"smallest head", 2, 33, 3, 1, 2, {}}, AttentionCase{"wide head", 1, 97, 2, 1, 128, {}},
        AttentionCase{"widest head", 1, 70, 1, 1, 256, {}}, AttentionCase{"head of odd size", 1, 70, 2, 2, 83, {}},
        AttentionCase{"bf16", 2, 67, 4, 4, 16, {}, at::kBFloat16},
        AttentionCase{"bf16 grouped", 2, 67, 6, 2, 16, {}, at::kBFloat16},
        AttentionCase{"documents", 2, 41, 4, 2, 16, {{0, 7, 30}, {0}}},
        AttentionCase{"documents over tiles", 1, 300, 2, 1, 16, {{0, 5, 69, 199}}},
        AttentionCase{"documents of one token", 1, 9, 2, 2, 8, {{0, 1, 2, 8}}},
        AttentionCase{"bf16 documents", 3, 33, 4, 2, 16, {{0, 16}, {0, 1, 32}, {0}}, at::kBFloat16}));

TEST(Attention, Bf16ResultsAreOffByLittleMoreThanTheirOwnRounding) {
  const Inputs inputs({"", 2, 150, 4, 2, 32, {}, at::kBFloat16});
  PlainContext plain;
  const at::Tensor output = make_sdpa_core(false)->forward(inputs.q, inputs.k, inputs.v, {}, plain.context);
  const at::Tensor q = leaf(as_double(inputs.q)), k = leaf(as_double(inputs.k)), v = leaf(as_double(inputs.v));
  const at::Tensor expected = masked_softmax(q, k, v, {});
  const at::Tensor d = normal(output.sizes(), 4, at::kBFloat16);
  const auto got = backward({output}, {d}, inputs.all());
  const auto wanted = backward({expected}, {as_double(d)}, {q, k, v});
  // Rounding float64 results to bf16 leaves 1.7e-3; the kept output is rounded too, which the gradients feel.
  const double rounding = distance(expected.detach().to(at::kBFloat16), expected);
  EXPECT_LE(distance(output, expected), 1.01 * rounding);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(distance(got[i], wanted[i]), 1.5 * rounding) << "qkv"[i];
}

TEST(Attention, LargeScoresNeitherOverflowNorLoseTheSoftmax) {
  const AttentionCase sizes{"", 1, 90, 2, 1, 16, {}};
  const Inputs inputs(sizes);
  const at::Tensor q = leaf(inputs.q * 60), k = leaf(inputs.k * 60);  // scores of several thousand
  PlainContext plain;
  const at::Tensor output = make_sdpa_core(false)->forward(q, k, inputs.v, {}, plain.context);
  const at::Tensor expected = masked_softmax(as_double(q), as_double(k), as_double(inputs.v), {});
  EXPECT_TRUE(near(output, expected, 1e-3));
}

TEST(Attention, ANaNIsSeenByLaterPlacesOnly) {
  const Inputs inputs({"", 1, 100, 1, 1, 16, {}});
  inputs.k.detach().select(1, 70).fill_(NAN);
  PlainContext plain;
  const at::Tensor output = make_sdpa_core(false)->forward(inputs.q, inputs.k, inputs.v, {}, plain.context);
  const at::Tensor broken = output.detach().isnan().any(-1).flatten();
  EXPECT_FALSE(broken.narrow(0, 0, 70).any().item<bool>());
  EXPECT_TRUE(broken.narrow(0, 70, 30).all().item<bool>());
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Inputs inputs({"", 2, 150, 4, 2, 16, {}, type});
    const AttentionBounds bounds{{{0, 70, 75}, {0}}};
    const at::Tensor d = normal(inputs.q.sizes(), 9, type);
    auto run = [&](int threads) {
      ThreadCount count(threads);
      PlainContext plain;
      const at::Tensor output = make_sdpa_core(true)->forward(inputs.q, inputs.k, inputs.v, bounds, plain.context);
      std::vector<at::Tensor> results = backward({output}, {d}, inputs.all());
      results.push_back(output.detach());
      return results;
    };
    const auto one = run(1);
    for (int threads : {2, 3, 8}) {
      const auto several = run(threads);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(several[i], one[i])) << threads << ' ' << i;
    }
  }
}

TEST(Attention, InputsOfAnyStridesGiveTheBitsOfContiguousOnes) {
  const Inputs inputs({"", 2, 70, 4, 2, 24, {}});
  const at::Tensor d = normal(inputs.q.sizes(), 5);
  const auto core = make_sdpa_core(false);
  auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& laid_out) {
    std::vector<at::Tensor> in;
    for (const at::Tensor& input : inputs.all()) in.push_back(laid_out(input.detach()).set_requires_grad(true));
    PlainContext plain;
    const at::Tensor output = core->forward(in[0], in[1], in[2], {}, plain.context);
    std::vector<at::Tensor> results = backward({output}, {laid_out(d)}, in);
    results.push_back(output.detach());
    return results;
  };
  const auto expected = run([](const at::Tensor& tensor) { return tensor.clone(); });
  auto heads_first = [](const at::Tensor& tensor) { return tensor.transpose(1, 2).contiguous().transpose(1, 2); };
  auto inside_a_product = [](const at::Tensor& tensor) {
    return at::cat({at::zeros_like(tensor), tensor, tensor}, 2).narrow(2, tensor.size(2), tensor.size(2));
  };
  auto numbers_apart = [](const at::Tensor& tensor) { return tensor.transpose(1, 3).contiguous().transpose(1, 3); };
  for (const auto& results : {run(heads_first), run(numbers_apart), run(inside_a_product)}) {
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], expected[i])) << i;
  }
}

TEST(Attention, BoundsAreIgnoredByACausalCore) {
  const AttentionCase sizes{"", 2, 12, 2, 2, 8, {}};
  const Inputs inputs(sizes);
  PlainContext plain;
  const auto core = make_sdpa_core(/*block_causal=*/false);
  EXPECT_TRUE(same_bits(core->forward(inputs.q, inputs.k, inputs.v, {{{0, 5}, {0, 7}}}, plain.context),
                        core->forward(inputs.q, inputs.k, inputs.v, {}, plain.context)));
}

TEST(Attention, ADocumentDoesNotSeeTheOneBeforeItBitForBit) {
  const AttentionCase sizes{"", 1, 50, 4, 2, 16, {}};
  const Inputs inputs(sizes);
  const AttentionBounds bounds{{{0, 21}}};
  PlainContext plain;
  const auto core = make_sdpa_core(/*block_causal=*/true);
  auto run = [&] {
    return core->forward(inputs.q.detach(), inputs.k.detach(), inputs.v.detach(), bounds, plain.context);
  };
  const at::Tensor before = run().clone();
  for (const at::Tensor& input : inputs.all()) input.detach().narrow(1, 0, 21).add_(1.0);
  const at::Tensor after = run();
  EXPECT_TRUE(same_bits(after.narrow(1, 21, 29), before.narrow(1, 21, 29)));
  EXPECT_GT(distance(after.narrow(1, 0, 21), before.narrow(1, 0, 21)), 0.01);
}

TEST(Attention, ADocumentIsWorthTheSameInsideAPackAndAlone) {
  const AttentionCase sizes{"", 1, 40, 2, 2, 16, {}};
  const Inputs inputs(sizes);
  PlainContext plain;
  const auto core = make_sdpa_core(/*block_causal=*/true);
  const at::Tensor packed = core->forward(inputs.q, inputs.k, inputs.v, {{{0, 11, 29}}}, plain.context);
  auto part = [](const at::Tensor& tensor) { return tensor.detach().narrow(1, 11, 18); };
  const at::Tensor alone = core->forward(part(inputs.q), part(inputs.k), part(inputs.v), {}, plain.context);
  EXPECT_TRUE(same_bits(part(packed), alone));
}

TEST(Attention, BoundsForAnotherNumberOfSamplesAreABug) {
  const Inputs inputs({"", 2, 4, 1, 1, 8, {}});
  PlainContext plain;
  EXPECT_THROW(make_sdpa_core(true)->forward(inputs.q, inputs.k, inputs.v, {{{0}}}, plain.context), InvariantError);
}

TEST(Attention, AKeptResultIsHandedOutInTheReplayAndGivesTheSameGradients) {
  for (const AttentionBounds& bounds : {AttentionBounds{}, AttentionBounds{{{0, 9}, {0, 3, 20}}}}) {
    const Inputs inputs({"", 2, 23, 4, 2, 8, {}});
    const auto core = make_sdpa_core(!bounds.document_starts.empty());
    PlainContext plain;
    const at::Tensor direct = core->forward(inputs.q, inputs.k, inputs.v, bounds, plain.context);
    const at::Tensor d = normal(direct.sizes(), 9);
    const auto expected = backward({direct}, {d}, inputs.all());

    ImmediateSink sink;
    UnitContext context(UnitMode::train, RecomputePolicy::full().set(ResultKind::attention, 0, Keep::keep), sink);
    context.recorder.start(Recorder::Phase::first_run);
    {
      at::NoGradGuard no_graph;
      core->forward(inputs.q, inputs.k, inputs.v, bounds, context);
    }
    context.recorder.start(Recorder::Phase::replay);
    const auto got = backward({core->forward(inputs.q, inputs.k, inputs.v, bounds, context)}, {d}, inputs.all());
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << "qkv"[i];
  }
}

}  // namespace
}  // namespace titan
